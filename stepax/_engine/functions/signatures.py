"""What annotations and docstrings say of parameters; signatures with names of aliases.

The annotations themselves are unchanged, because the engine and other programs read
them; only the text is short.  Python prints the alias `ScalarOrSchedule` as the union
that it represents, 270 characters for one argument.
"""

import functools as ft
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeAlias, TypeVar, cast, get_args, get_origin

import jax
from jax.typing import ArrayLike, DTypeLike


# The members of the union that annotates a parameter; empty if it has no annotation.
Hint: TypeAlias = list[object]


def members(hint: object) -> Hint:
    """The members of a union, and of unions within it."""
    # `X | Y` is a `UnionType`, but a `typing.Union` if one of them is from `typing`.
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return [x for part in typing.get_args(hint) for x in members(part)]
    return [hint]


def of_parameters(f: Callable) -> dict[str, Hint]:
    """The annotations of a function's parameters."""
    inner = f
    # A partial has no globals in which to look up annotations given as text.
    while isinstance(inner, ft.partial):
        inner = inner.func
    names = getattr(inspect.unwrap(inner), "__globals__", {})
    parameters = inspect.signature(f).parameters.values()
    return {p.name: _hint(p.annotation, names) for p in parameters}


def _hint(annotation: object, names: dict) -> Hint:
    if annotation is inspect.Parameter.empty:
        return []
    # From `from __future__ import annotations`.
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, names)
        except Exception:
            return []  # it uses names that are imported only for type checkers
    return members(annotation)


# Types by the names that are printed.  `protocol`, which is above this module, adds its
# aliases.
NAMES: dict[str, Any] = {
    "ArrayLike": ArrayLike,
    "DTypeLike": DTypeLike,
    "PrecisionLike": jax.lax.PrecisionLike,
    "jax.Array": jax.Array,
}


def text(hint: object) -> str:
    """An annotation as it is written."""
    if isinstance(hint, list):  # the parameters of a `Callable`
        return f"[{', '.join(map(text, hint))}]"
    if hint is ...:
        return "..."
    if hint is None or hint is type(None):
        return "None"
    parts = members(hint)
    return " | ".join(_names(parts)) if len(parts) > 1 else _name(hint)


def _names(parts: list) -> list[str]:
    """The members of a union; those that make up a named union, under its name."""
    found = []
    # Python flattens nested unions, so an alias is recognized by its members; larger
    # aliases first, because they may contain smaller ones.
    unions = {name: members(x) for name, x in NAMES.items()}
    for name, own in sorted(unions.items(), key=lambda item: -len(item[1])):
        if len(own) > 1 and all(x in parts for x in own):
            parts = [x for x in parts if x not in own]
            found.append(name)
    return found + [text(x) for x in parts]


def _name(hint: object) -> str:
    for name, named in NAMES.items():
        if hint == named:
            return name
    origin = get_origin(hint)
    if origin is Literal:
        return f"Literal{list(get_args(hint))}"
    if origin is not None:
        return f"{text(origin)}[{', '.join(map(text, get_args(hint)))}]"
    return name_of(hint) or str(hint)


def name_of(x: object, default: str = "") -> str:
    """The name of a function or class; `default` for anything without one."""
    return getattr(x, "__name__", default)


class _Text(str):
    """A string that is printed without quotes."""

    __repr__ = str.__str__


def _type(annotation: object) -> object:
    is_empty = annotation is inspect.Signature.empty
    return annotation if is_empty else _Text(text(annotation))


def _default(x: object) -> object:
    """A default without its address in memory."""
    # A transformation is a tuple of two closures, and is printed as the call that made
    # it.
    made = getattr(getattr(x, "init", None), "node", None)
    if made:
        return _Text(made.call)
    if type(x).__repr__ is object.__repr__:
        return _Text(f"{type(x).__name__}()")
    name = "" if x is inspect.Parameter.empty else name_of(x)
    return _Text(name) if name else x


class Parameter(inspect.Parameter):
    """A parameter that is printed with the short name of its type."""

    __slots__ = ()

    def shown(self) -> inspect.Parameter:
        default, annotation = _default(self.default), _type(self.annotation)
        return inspect.Parameter(
            self.name, self.kind, default=default, annotation=annotation
        )

    def __str__(self) -> str:
        return str(self.shown())


class Signature(inspect.Signature):
    """A signature that is printed with the short names of its types."""

    __slots__ = ()
    _parameter_cls = Parameter  # what `from_callable` makes parameters of

    def shown(self) -> inspect.Signature:
        parameters = [
            p.shown() if isinstance(p, Parameter) else p
            for p in self.parameters.values()
        ]
        returned = _type(self.return_annotation)
        return inspect.Signature(parameters, return_annotation=returned)

    def __str__(self) -> str:
        return str(self.shown())

    def format(self, **kwargs: object) -> str:
        # From Python 3.13 on, where `__str__` and `help` call it.
        return getattr(self.shown(), "format")(**kwargs)  # noqa: B009 (3.11 has none)


def signature(f: Callable) -> inspect.Signature:
    """The signature of a function, which prints type aliases by their names."""
    return Signature.from_callable(f)


T = TypeVar("T")

# From each wrapper of `stepax.interop`, whose signature hides the parameters that Optax
# does not have, to the function that it wraps.  Filled by `interop`, which the engine
# must not import.
ORIGINALS: dict[Callable, Callable] = {}


def original(f: T) -> T:
    """The function that `f` wraps; `f` itself if it is not a wrapper."""
    try:
        return cast(T, ORIGINALS.get(cast(Callable, f), cast(Callable, f)))
    except TypeError:
        return f  # not hashable, and therefore not a function of ours


_SHARED = re.compile(r"^ *(?:Other a|A)rguments: those of `(\w+)`\.$", re.MULTILINE)
_EXPLANATIONS = re.compile(r"^((?:\w+, )*\w+): .*(?:\n    .*)*", re.MULTILINE)
_CAVEAT = re.compile(r"\nIn bfloat16 .*(?:\n.+)*")


def share_explanations(f: Callable) -> None:
    """Let the docstring of `f` explain arguments that it passes on to another function.

    "Arguments: those of `g`.", or other ones, becomes what that of `g` says of them,
    with what it says of the state in bfloat16.
    """
    if found := _SHARED.search(f.__doc__ or ""):
        text = inspect.cleandoc(found.string)
        other = inspect.getdoc(f.__globals__[found[1]]) or ""
        own = {x for row in _EXPLANATIONS.finditer(text) for x in row[1].split(", ")}
        rest = set(inspect.signature(f).parameters) - own
        rows = _EXPLANATIONS.finditer(other)
        shown = [row[0] for row in rows if rest.issuperset(row[1].split(", "))]
        shown += [x[0] for x in [_CAVEAT.search(other)] if x]
        f.__doc__ = text.replace(found[0].strip(), "\n".join(shown))


def keywords_of(update: Callable) -> tuple[frozenset[str], bool]:
    """The keywords in a signature besides `params`, and whether it takes any other."""
    try:
        parameters = list(inspect.signature(update).parameters.values())
    except (TypeError, ValueError):
        return frozenset(), True
    at = [p for i, p in enumerate(parameters) if i > 2 or p.kind is p.KEYWORD_ONLY]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    return frozenset(by_name(at)), takes_any


def by_name(parameters: Iterable[inspect.Parameter]) -> list[str]:
    """The names of the parameters that may be given by name."""
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    return [p.name for p in parameters if p.kind in kinds]
