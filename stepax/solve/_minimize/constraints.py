"""Constraints and bounds of a minimization: the forms that users write, their meaning.

A constraint is a function of the parameters with limits for its value, a tree of real
arrays.  An equality has two equal limits.  Bounds may have the forms of SciPy.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ..._engine.arrays.precision import compute_dtype, widen
from ..._engine.base import is_array, is_none
from ..._engine.functions.calls import explain_misuse
from ..._engine.trees import errors
from .frame import Frame, check_arrays, open_arguments


_FORMS = (
    "`equality(fun)` or `inequality(fun, lower, upper)` of `stepax.solve.constraints`, "
    "a function that is to be 0, SciPy's dict or constraint, or a list of these"
)


class Constraint(NamedTuple):
    """The result of `equality` and `inequality`: lower <= fun(params, *args) <= upper.

    args: further arguments of `fun`; those of `minimize` if `None`.
    """

    fun: Callable[..., Any]
    lower: Any
    upper: Any
    args: Any = None


@explain_misuse
def equality(fun: Callable[..., Any], value: Any = 0.0) -> Constraint:
    """A constraint of `minimize`: fun(params, *args) = value.

    fun: a function of the parameters and of the `args` of `minimize` that returns a
        tree of real arrays.
    value: a scalar, or a tree like the value of `fun` or a prefix of it.

    Raises a TypeError if `fun` is not a function.
    """
    _require_function(fun, "`fun` of `equality`")
    return Constraint(fun, value, value)


@explain_misuse
def inequality(
    fun: Callable[..., Any], lower: Any = None, upper: Any = None
) -> Constraint:
    """A constraint of `minimize`: lower <= fun(params, *args) <= upper.

    fun: a function of the parameters and of the `args` of `minimize` that returns a
        tree of real arrays.
    lower, upper: scalars, or trees like the value of `fun` or prefixes of it; `None`
        for no limit; if both are `None`, `lower` is 0, as in SciPy.

    Raises a TypeError if `fun` is not a function.
    """
    _require_function(fun, "`fun` of `inequality`")
    return Constraint(fun, 0.0 if lower is None and upper is None else lower, upper)


def _require_function(fun: Any, name: str) -> None:
    if not callable(fun):
        raise TypeError(f"{name} is {errors.describe(fun)}, expected a function")


class Opened(NamedTuple):
    """Constraints without their functions and arrays, which can be compared and hashed.

    frames: for each constraint, the frame of its limits and arguments.
    is_one: whether a single constraint was given, not a list.
    """

    frames: tuple[Frame, ...] = ()
    is_one: bool = False

    def values(
        self, funs: list[Callable], arrays: list, params: Any, args: tuple
    ) -> tuple[Any, Any, Any]:
        """Three trees of equal structure: values, lower limits and upper limits."""
        rows = zip(self.frames, funs, arrays, strict=True)
        found = [
            _value(fun, frame.whole((), own), params, args, self.name(i))
            for i, (frame, fun, own) in enumerate(rows)
        ]
        values, lower, upper = map(list, zip(*found, strict=True))
        return found[0] if self.is_one else (values, lower, upper)

    def name(self, i: int) -> str:
        return "`constraints`" if self.is_one else f"`constraints[{i}]`"


def open_constraints(
    given: Any, frame: Frame
) -> tuple[Opened | None, list[Callable], list]:
    """The static part of constraints, `None` if there are none; functions; arrays.

    frame: the frame of the parameters, which must be one array for SciPy's linear
        constraints.
    """
    if given is None or (type(given) in (list, tuple) and not given):
        return None, [], []
    is_one = not isinstance(given, list | tuple) or isinstance(given, Constraint)
    rows = [given] if is_one else list(given)
    name = Opened((), is_one).name
    found = [_constraint(x, name(i), frame) for i, x in enumerate(rows)]
    for i, x in enumerate(found):
        _check_order(x, name(i))
    pairs = [open_arguments((x.lower, x.upper, x.args)) for x in found]
    frames, arrays = zip(*pairs, strict=True)
    return Opened(frames, is_one), [x.fun for x in found], list(arrays)


def _constraint(x: Any, name: str, frame: Frame) -> Constraint:
    if isinstance(x, Constraint):
        return x
    if isinstance(x, dict):
        return _from_dict(x, name)
    if hasattr(x, "lb") and hasattr(x, "ub"):
        return _from_scipy(x, name, frame)
    if not callable(x):
        raise TypeError(f"{name} is {errors.describe(x)}, expected {_FORMS}")
    return Constraint(x, 0.0, 0.0)


def _from_scipy(x: Any, name: str, frame: Frame) -> Constraint:
    """One of SciPy's constraints of a single array."""
    limits = np.asarray(x.lb), np.asarray(x.ub)
    if not hasattr(x, "A"):
        fun = getattr(x, "fun", None)
        _require_function(fun, f"`fun` of {name}")
        return Constraint(x.fun, *limits, ())
    if not frame.is_one:
        raise ValueError(
            f"{name} is SciPy's `LinearConstraint`, which says nothing of a tree; "
            "expected `constraints.inequality(fun, lower, upper)`"
        )
    return Constraint(_product, *limits, (np.asarray(x.A),))


def _from_dict(x: dict, name: str) -> Constraint:
    kinds = {"eq": (0.0, 0.0), "ineq": (0.0, None)}
    if x.get("type") not in kinds or not callable(x.get("fun")):
        raise ValueError(
            f"{name} is a dict of {sorted(map(str, x))}, expected "
            "{'type': 'eq' or 'ineq', 'fun': a function}, or " + _FORMS
        )
    args = x.get("args", ())
    args = args if isinstance(args, tuple) else (args,)
    lower, upper = kinds[x["type"]]
    return Constraint(x["fun"], lower, upper, args)


def _product(x: jax.Array, matrix: jax.Array) -> jax.Array:
    return matrix.astype(x.dtype) @ x


def _check_order(x: Constraint, name: str) -> None:
    """Limits that are known must be numbers in order."""
    for side, given in ("lower", x.lower), ("upper", x.upper):
        for leaf in jax.tree.leaves(given):
            if not is_array(leaf) or jnp.iscomplexobj(leaf):
                raise TypeError(
                    f"`{side}` of {name} holds {errors.describe(leaf)}, expected real "
                    "numbers"
                )
    pair = x.lower, x.upper
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(pair)):
        return
    if any(np.isnan(np.asarray(leaf, float)).any() for leaf in jax.tree.leaves(pair)):
        raise ValueError(f"a limit of {name} is NaN, expected a number")
    # Limits of different structures are compared once the value of the function is
    # known.
    if not (is_array(x.lower) and is_array(x.upper)):
        return
    if np.any(np.asarray(x.lower) > np.asarray(x.upper)):
        raise ValueError(
            f"`lower` of {name} is above `upper`: {x.lower} and {x.upper}; no value is "
            "between them"
        )


def _value(fun: Callable, own: Any, params: Any, args: tuple, name: str) -> tuple:
    lower, upper, more = own
    value = fun(params, *(args if more is None else more))
    hint = ": return the difference of both sides, not their comparison"
    check_arrays(value, name, jnp.floating, "real arrays", hint)
    value = jax.tree.map(_wide, value)
    low = _limits(-jnp.inf if lower is None else lower, value, f"`lower` of {name}")
    high = _limits(jnp.inf if upper is None else upper, value, f"`upper` of {name}")
    return value, low, high


def _wide(x: Any) -> jax.Array:
    x = jnp.asarray(x)
    return widen(x, compute_dtype(x))  # in half precision, sums of squares overflow


def _limits(given: Any, value: Any, name: str) -> Any:
    """Limits of the structure and the shapes of a value."""
    try:
        whole = jax.tree.broadcast(given, value)
    except ValueError:
        raise ValueError(
            f"{name} is {errors.describe(given)}, but the function returns "
            f"{errors.describe(value)}; expected a scalar, or a tree like that"
        ) from None

    def one(limit, x):
        try:
            return jnp.broadcast_to(jnp.asarray(limit).astype(x.dtype), x.shape)
        except ValueError:
            raise ValueError(
                f"{name} has shape {jnp.shape(limit)}, but the function returns shape "
                f"{x.shape}; expected that shape, or a scalar"
            ) from None

    return jax.tree.map(one, whole, value)


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
