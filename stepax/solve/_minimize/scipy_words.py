"""Help for users who call a solver with the arguments of SciPy, JAXopt and others.

Unambiguous forms are accepted: bounds as pairs, or as SciPy's `Bounds`.  For the others
an error says what to write instead.
"""

import functools as ft
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ..._engine.base import is_none
from ..._engine.functions.calls import explain_misuse
from ..._engine.trees import errors
from .frame import Frame


P = ParamSpec("P")
R = TypeVar("R")

# Replacements of the arguments and options of SciPy and JAXopt; {} is the value.
_DERIVATIVE = (
    "nothing: JAX differentiates {}; define your own derivative with `jax.custom_jvp`"
)
_OF_FUN = _DERIVATIVE.format("`fun`, which returns its value alone")
_OF_SYSTEM = _DERIVATIVE.format("the function")
_COMMON = {
    **dict.fromkeys(("maxiter", "maxfev", "maxfun", "max_nfev"), "`max_steps={}`"),
    **dict.fromkeys(("disp", "verbose"), "`progress={}`"),
    "xtol": "`tol=stepax.solve.Tolerances(step={})`",
    **dict.fromkeys(
        ("implicit_diff", "implicit_diff_solve"),
        "nothing: results are always differentiable",
    ),
    **dict.fromkeys(("jit", "unroll"), "nothing: the whole loop is always compiled"),
}
_OF_VALUES = {
    **_COMMON,
    **dict.fromkeys(("gtol", "pgtol"), "`tol={}`"),
    "ftol": "`tol=stepax.solve.Tolerances(value={})`",
}
MINIMIZE = {
    **_OF_VALUES,
    **dict.fromkeys(("jac", "hess", "hessp"), _OF_FUN),
    "maxcor": "`method=stepax.lbfgs(memory_size={})`",
}
LEAST_SQUARES = {
    **_OF_VALUES,
    **dict.fromkeys(("jac", "fprime", "diff_step"), _OF_SYSTEM),
    "f_scale": "`scale={}`",
    "x_scale": "nothing: parameters are scaled by the columns of the Jacobian",
    "method": "nothing: the method is Levenberg and Marquardt's, also with bounds",
    "tr_solver": "`solver='qr'` for 'exact', `solver='cg'` for 'lsmr'",
    "damping_parameter": "nothing: the region of the first step is chosen by itself",
}
ROOT = {
    **_COMMON,
    **dict.fromkeys(("jac", "fprime", "fprime2"), _OF_SYSTEM),
    "x1": "`bracket=(x0, x1)` if the function changes its sign between them",
    **dict.fromkeys(("lower", "upper"), "`bracket=(lower, upper)`"),
    "check_bracket": "nothing: a bracket without a change of sign is a `status`",
    "rtol": "`tol=stepax.solve.Tolerances(step={})`",
    "history_size": "nothing: the method keeps the whole matrix",
    **dict.fromkeys(("linesearch", "stepsize"), "nothing: there is one line search"),
}
FIXED_POINT = {
    **_COMMON,
    **dict.fromkeys(("jac", "fprime"), _OF_SYSTEM),
    "history_size": "`memory={}`",
    "mixing_frequency": "nothing: each step is accelerated",
    "beta": "`damping={}`",
    "ridge": "nothing: the least squares are solved without the normal equations",
    "tolerance": "`tol={}`",
}
_EQUAL, _ABOVE = "`equality=(A, b)`", "`inequality=(G, None, h)`"
_ROWS = f"{_EQUAL} or {_ABOVE}"
QUADRATIC = {
    "P": "`Q`",
    "q": "`c`",
    "params_obj": "`quadratic_program(Q, c)`",
    **dict.fromkeys(("A", "b", "A_eq", "b_eq", "params_eq"), _EQUAL),
    **dict.fromkeys(("A_ub", "b_ub", "G", "h", "params_ineq"), _ABOVE),
    "constraints": _ROWS,
    **dict.fromkeys(("init_params", "initvals"), "`x0`"),
    **dict.fromkeys(("maxiter", "max_iter"), "`max_steps`"),
}


def answering(words: dict[str, str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Raise errors for foreign keywords; words: replacements, with {} for the value."""

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
