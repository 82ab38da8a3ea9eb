"""Signatures that are printed with the names of types as one writes them.

Annotations stay what they are, because the engine and other programs read them; only
the text is short.  Python prints `ScalarOrSchedule` as the union it is, in which
`ArrayLike` stands twice: 270 characters for one argument.  Strings for annotations, by
`from __future__ import annotations`, are short as well, but are printed in quotes, and
whoever reads types has to evaluate them where they were written.
"""

import inspect
from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin

import jax
from jax.typing import ArrayLike, DTypeLike

from .annotations import members


# Types by the names under which they are shown; `protocol` adds its own.
NAMES: dict[str, Any] = {
    "ArrayLike": ArrayLike,
    "DTypeLike": DTypeLike,
    "PrecisionLike": jax.lax.PrecisionLike,
    "jax.Array": jax.Array,
}


def text(hint: Any) -> str:
    """An annotation as one writes it."""
    if isinstance(hint, list):
        return f"[{', '.join(map(text, hint))}]"
    if hint is ...:
        return "..."
    if hint is None or hint is type(None):
        return "None"
    parts = members(hint)
    return " | ".join(_names(parts)) if len(parts) > 1 else _name(hint)


def _names(parts: list) -> list[str]:
    """The members of a union, those of a union with a name under that."""
    found = []
    unions = {name: members(x) for name, x in NAMES.items()}
    for name, own in sorted(unions.items(), key=lambda item: -len(item[1])):
        if len(own) > 1 and all(x in parts for x in own):
            parts = [x for x in parts if x not in own]
            found.append(name)
    return found + [text(x) for x in parts]


def _name(hint: Any) -> str:
    for name, named in NAMES.items():
        if hint == named:
            return name
    origin = get_origin(hint)
    if origin is Literal:
        return f"Literal{list(get_args(hint))}"
    if origin is not None:
        return f"{text(origin)}[{', '.join(map(text, get_args(hint)))}]"
    return getattr(hint, "__name__", None) or str(hint)


class _Text(str):
    """A string that is printed without quotes."""

    __repr__ = str.__str__


def _type(annotation: Any) -> Any:
    is_empty = annotation is inspect.Signature.empty
    return annotation if is_empty else _Text(text(annotation))


def _default(x: Any) -> Any:
    """A default without its address: a transformation is shown as its call."""
    made = getattr(getattr(x, "init", None), "made", None)
    if made:
        return _Text(made.recipe)
    if type(x).__repr__ is object.__repr__:
        return _Text(f"{type(x).__name__}()")
    is_named = x is not inspect.Parameter.empty and hasattr(x, "__name__")
    return _Text(x.__name__) if is_named else x


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

    def shown(self) -> Any:
        parameters = [
            p.shown() if isinstance(p, Parameter) else p
            for p in self.parameters.values()
        ]
        returned = _type(self.return_annotation)
        return inspect.Signature(parameters, return_annotation=returned)

    def __str__(self) -> str:
        return str(self.shown())

    def format(self, **kwargs: Any) -> str:
        return self.shown().format(**kwargs)  # from Python 3.13 on


def signature(f: Callable) -> inspect.Signature:
    """The signature of a function, that is printed short."""
    return Signature.from_callable(f)
