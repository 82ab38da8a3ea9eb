"""Help for users who call `minimize` with SciPy's arguments.

Unambiguous forms are accepted: bounds as pairs, or as SciPy's `Bounds`.  For the others
an error says what to write instead.
"""

import functools as ft
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax.numpy as jnp
import numpy as np

from .._engine.functions.calls import explain_misuse
from .._engine.trees import errors
from .frame import Frame


P = ParamSpec("P")
R = TypeVar("R")

_LIMIT = "`max_steps={}`"
_DERIVATIVE = (
    "nothing: JAX differentiates `fun`, which returns its value alone; define your own "
    "derivative with `jax.custom_jvp`"
)
# Replacements of SciPy's arguments and options; {} is the value.
WORDS = {
    "maxiter": _LIMIT,
    "maxfun": _LIMIT,
    "maxfev": _LIMIT,
    "jac": _DERIVATIVE,
    "hess": _DERIVATIVE,
    "hessp": _DERIVATIVE,
    "gtol": "`tol={}`",
    "pgtol": "`tol={}`",
    "ftol": "`tol=stepax.Tolerances(value={})`",
    "xtol": "`tol=stepax.Tolerances(step={})`",
    "maxcor": "`method=stepax.lbfgs(memory_size={})`",
    "disp": "`progress={}`",
}


def answering(words: dict[str, str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator that raises errors for foreign keywords that name the replacements.

    words: the replacement of each keyword; {} is its value.
    """

    def decorate(solve: Callable[P, R]) -> Callable[P, R]:
        explaining = explain_misuse(solve)

        @ft.wraps(explaining)
        def answered(*args: P.args, **kwargs: P.kwargs) -> R:
            for name, value in kwargs.items():
                if name in words or name == "options":
                    raise TypeError(_answer(solve.__name__, words, name, value))
            return explaining(*args, **kwargs)

        return answered

    return decorate


def _answer(solver: str, words: dict[str, str], name: str, value: Any) -> str:
    said = f"`{solver}` has no argument `{name}`"
    if name == "options" and isinstance(value, dict):
        none = "nothing, since there is no counterpart"
        found = [f"{words.get(k, none).format(x)} for `{k}`" for k, x in value.items()]
        return f"{said}; write {', '.join(found) or 'nothing'}"
    word = words.get(name, "each of them as an argument")
    return f"{said}; write {word.format(value)}"


# --- bounds --------------------------------------------------------------------------

_PAIR = (
    "a pair of lower and upper bounds, each `None`, a number, or a tree like `x0`: "
    "`bounds=(lower, upper)`"
)


def sides(given: Any, frame: Frame, moving: list) -> tuple[Any, Any]:
    """The lower and upper bounds, which may be given in SciPy's forms."""
    if hasattr(given, "lb") and hasattr(given, "ub"):
        _require_one(frame, "SciPy's `Bounds`")
        return given.lb, given.ub
    if _is_pairs(given) and (frame.is_one or len(given) != 2):
        _require_one(frame, "a list of pairs")
        return _columns(given, moving[0])
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise ValueError(f"`bounds` is {errors.describe(given)}, expected {_PAIR}")
    return given[0], given[1]


def _is_pairs(given: Any) -> bool:
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
    column = lambda i, none: jnp.stack(
        [jnp.asarray(none if pair[i] is None else pair[i], x.dtype) for pair in pairs]
    ).reshape(x.shape)
    return column(0, -np.inf), column(1, np.inf)
