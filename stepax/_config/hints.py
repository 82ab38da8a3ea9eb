"""What may be data: hints of annotations, and errors for what is not.

Hints say which lists are tuples and which strings numbers; errors give the location and
a replacement.
"""

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .._engine.factories.registry import ROWS
from .._engine.functions.calls import is_transformation
from .._engine.functions.signatures import Hint, members, of_parameters


class Hints:
    """What the annotations of a factory say about its arguments."""

    def __init__(self, factory: Callable):
        self._by_name = of_parameters(factory)
        parameters = inspect.signature(factory).parameters.values()
        by_name = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
        self._positional = [p.name for p in parameters if p.kind not in by_name]

    def named(self, name: str) -> Hint:
        """The hint for a keyword argument; empty if it is not known."""
        return self._by_name.get(name, [])

    def at(self, i: int) -> Hint:
        """The hint for a positional argument, the last of which may be variadic."""
        known = self._positional
        return self.named(known[min(i, len(known) - 1)]) if known else []


def takes_tuple(hint: Hint) -> bool:
    """Whether a list represents a tuple."""
    origins = [typing.get_origin(x) or x for x in hint]
    return tuple in origins and not any(x in origins for x in (list, Sequence, Any))


def takes_number(hint: Hint) -> bool:
    """Whether a string can only be meant as a number."""
    origins = [typing.get_origin(x) or x for x in hint]
    if any(x in origins for x in (str, Any, Literal)):
        return False
    return any(x in origins for x in (int, float, np.number))


def below(hint: Hint, i: int = 0) -> Hint:
    """The hint for the i-th element of a sequence, or for the values of a mapping."""
    found = []
    for x in hint:
        origin, args = typing.get_origin(x), typing.get_args(x)
        if origin is tuple and args[-1] is not ...:
            args = args[i : i + 1]
        elif isinstance(origin, type) and issubclass(origin, Mapping):
            args = args[1:]
        elif not (isinstance(origin, type) and issubclass(origin, Iterable)):
            continue
        found += members(args[0]) if args else []
    return found


def place(path: tuple) -> str:
    """The location of a value in a configuration."""
    return "".join(f"[{k!r}]" for k in path) or "the root"


def refusal(x: Any, path: tuple) -> TypeError:
    """The error for an argument that is not data, with what to give instead."""
    if is_transformation(x) and not isinstance(x, type):
        what, instead = _transformation(x)
    elif isinstance(x, np.ndarray | jax.Array):
        is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        what = "a random key" if is_key else f"an array of {x.dtype}[{x.size}]"
        what = "a traced array" if isinstance(x, Tracer) else what
        instead = "give an integer, such as `seed`, or numbers outside of `jit`"
    else:
        kind = type(x).__name__
        what = f"a `{kind}`, which is not data"
        if callable(x):
            name = getattr(x, "__qualname__", kind)
            what = f"the function `{name}`, which is not data"
        instead = _data_for(x, path)
    return TypeError(f"{place(path)} is {what}; {instead}")


def _transformation(x: Any) -> tuple[str, str]:
    """The package and the factory of an `update` of another library; the remedy."""
    update = x.update if callable(x.update) else type(x)
    name = getattr(update, "__qualname__", type(x).__name__).partition(".")[0]
    home = getattr(update, "__module__", "").partition(".")[0]
    what = f"a transformation made by `{name}` of `{home}`, not by a factory"
    if name in ROWS:
        return what, f"make it with the `{name}` of Stepax"
    return what, "decorate the function that makes it with `stepax.rules.rule()`"


def _data_for(x: Any, path: tuple) -> str:
    names = ["", *(k for k in path if isinstance(k, str))]
    if any(word in names[-1] for word in ("mask", "labels", "numbers")):
        return 'use patterns of paths, as in {"embed/**": True, "**": False}'
    if callable(x):
        return (
            "use a schedule of `stepax.schedules`, or a factory that "
            "`stepax.rules.rule()` decorates"
        )
    return "use dictionaries, lists, strings, numbers, arrays and transformations"
