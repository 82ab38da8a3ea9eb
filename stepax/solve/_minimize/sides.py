"""Bounds in the forms of SciPy: pairs, `Bounds`, and two sides."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._engine.base import is_none
from ..._engine.trees import errors
from .frame import Frame


_PAIR = (
    "a pair of lower and upper bounds, each `None`, a number, or a tree like `x0`: "
    "`bounds=(lower, upper)`"
)


def sides(given: Any, frame: Frame, moving: list, name: str) -> tuple[Any, Any]:
    """The lower and upper bounds, which may be given in SciPy's forms.

    name: what the user calls the function; only `fun`, that of `minimize`, has two
        pairs for two parameters, where SciPy's `least_squares` has two sides.
    """
    if hasattr(given, "lb") and hasattr(given, "ub"):
        _require_one(frame, "SciPy's `Bounds`")
        return given.lb, given.ub
    is_pairs = are_pairs(given)
    if is_pairs and len(given) != 2:
        _require_one(frame, "a list of pairs")
    if not is_pairs and not (isinstance(given, tuple | list) and len(given) == 2):
        raise ValueError(f"`bounds` is {errors.describe(given)}, expected {_PAIR}")
    if not frame.is_one:
        return given[0], given[1]
    x, is_tuples = moving[0], all(isinstance(pair, tuple) for pair in given)
    if is_pairs and name == "fun" and x.size == 2 and not is_tuples:
        raise ValueError(
            f"`bounds` is {given!r}, which may be (lower, upper) or a pair for each of "
            "two parameters; write `bounds=(jnp.array(lower), jnp.array(upper))`, or "
            "pairs as tuples: `bounds=[(low, high), (low, high)]`"
        )
    if is_pairs and (len(given) != 2 or name == "fun" and is_tuples):
        return _columns(given, x)
    return _array(given[0], -np.inf, x), _array(given[1], np.inf, x)


def are_pairs(given: Any) -> bool:
    """Whether this is a sequence of pairs of numbers or `None`."""
    is_number = lambda x: x is None or np.ndim(x) == 0
    is_pair = lambda x: isinstance(x, tuple | list) and len(x) == 2
    if not isinstance(given, tuple | list) or not all(map(is_pair, given)):
        return False
    return len(given) > 0 and all(is_number(x) for pair in given for x in pair)


def _require_one(frame: Frame, what: str) -> None:
    if not frame.is_one:
        raise ValueError(
            f"`bounds` is {what}, which does not apply to a tree; expected {_PAIR}"
        )


def _columns(pairs: Any, x: Any) -> tuple[Any, Any]:
    """Two arrays from a list with one pair per element of `x`."""
    if len(pairs) != x.size:
        raise ValueError(
            f"`bounds` has {len(pairs)} pairs, but `x0` has {x.size} numbers; expected "
            f"a pair for each, or {_PAIR}"
        )
    lower, upper = zip(*pairs, strict=True)
    sides = _array(lower, -np.inf, x), _array(upper, np.inf, x)
    return sides[0].reshape(x.shape), sides[1].reshape(x.shape)


def _array(side: Any, none: float, x: Any) -> Any:
    """An array from a list; others are as they are."""
    if not isinstance(side, tuple | list):
        return side
    number = lambda b: jnp.asarray(none if b is None else b, x.dtype)
    return jnp.asarray(jax.tree.map(number, side, is_leaf=is_none))
