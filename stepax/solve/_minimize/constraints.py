"""Constraints of a minimization: the forms that users write, and their meaning.

A constraint is a function of the parameters with limits for its value, a tree of real
arrays.  An equality has two equal limits.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ..._engine.arrays.precision import compute_dtype, widen
from ..._engine.base import is_array
from ..._engine.functions.calls import explain_misuse, explain_tracing
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
    opened = Opened((), is_one)
    found = [_constraint(x, opened.name(i), frame) for i, x in enumerate(rows)]
    frames, arrays = [], []
    for i, x in enumerate(found):
        _check_order(x, opened.name(i))
        one, own = open_arguments((x.lower, x.upper, x.args))
        frames.append(one)
        arrays.append(own)
    return Opened(tuple(frames), is_one), [x.fun for x in found], arrays


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
    with explain_tracing(name):
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
