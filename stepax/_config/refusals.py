"""Errors for values that are not data, with their location and a replacement."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .._engine.factories.registry import ROWS


def place(path: tuple) -> str:
    """The location of a value in a configuration."""
    return "".join(f"[{k!r}]" for k in path) or "the root"


def refusal(x: Any, path: tuple) -> TypeError:
    """The error for an argument that is not data."""
    return TypeError(f"{place(path)} is {_kind(x)}; {_instead(x, path)}")


def _is_transformation(x: Any) -> bool:
    return not isinstance(x, type) and hasattr(x, "init") and hasattr(x, "update")


def _home(x: Any) -> tuple[str, str]:
    """The package and the factory of an `update` of another library."""
    update = x.update if callable(x.update) else type(x)
    name = getattr(update, "__qualname__", type(x).__name__)
    return getattr(update, "__module__", "").partition(".")[0], name.partition(".")[0]


def _kind(x: Any) -> str:
    if _is_transformation(x):
        home, name = _home(x)
        return f"a transformation made by `{name}` of `{home}`, not by a factory"
    if isinstance(x, Tracer):
        return "a traced array"
    if isinstance(x, np.ndarray | jax.Array):
        is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        return "a random key" if is_key else f"an array of {x.dtype}[{x.size}]"
    if callable(x):
        name = getattr(x, "__qualname__", type(x).__name__)
        return f"the function `{name}`, which is not data"
    return f"a `{type(x).__name__}`, which is not data"


def _instead(x: Any, path: tuple) -> str:
    names = [k for k in path if isinstance(k, str)]
    last = names[-1] if names else ""
    if _is_transformation(x):
        return _of_transformation(_home(x)[1])
    if isinstance(x, np.ndarray | jax.Array):
        return "give an integer, such as `seed`, or numbers outside of `jit`"
    if any(word in last for word in ("mask", "labels", "numbers")):
        return 'use patterns of paths, as in {"embed/**": True, "**": False}'
    if callable(x):
        return (
            "use a schedule of `stepax.schedules`, or a factory that "
            "`stepax.rules.rule()` decorates"
        )
    return "use dictionaries, lists, strings, numbers, arrays and transformations"


def _of_transformation(name: str) -> str:
    if name in ROWS:
        return f"make it with the `{name}` of Stepax"
    return "decorate the function that makes it with `stepax.rules.rule()`"
