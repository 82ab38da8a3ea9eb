"""`minimize`: run a method on a function from a start until it converges."""

from collections.abc import Callable
from typing import Any

import jax
from jax.core import Tracer
from jax.typing import ArrayLike

from ..._engine.base import require_transformation
from .._prox.operators import as_operator
from .augmented import Constrained
from .call import Call, Options
from .constraints import open_constraints
from .frame import open_arguments
from .implicit import attach
from .loop import Loop
from .pack import is_placed
from .proximal import Proximal, attach_nonsmooth
from .result import Result
from .sqp import Sequential, by_size
from .watch import Tolerances
from .words import MINIMIZE, answering


@answering(MINIMIZE)
def minimize(
    fun: Callable[..., Any],
    x0: Any,
    *,
    args: Any = (),
    method: str | Any = "auto",
    bounds: Any = None,
    constraints: Any = None,
    tol: ArrayLike | Tolerances | None = None,
    max_steps: ArrayLike = 15_000,
    has_aux: bool = False,
    history: bool | int = False,
    callback: Callable[[Result], Any] | None = None,
    progress: bool = False,
    project: bool = False,
    prox: Any = None,
) -> Result:
    """Minimize a function of any tree, in one compiled loop, until convergence.

        p = p + u,   u and the state from `method.update`,   until max |g| <= tol

    fun: a function of the parameters and `args` that returns a real scalar.
    has_aux: whether `fun` returns a pair of the scalar and auxiliary arrays.
    x0: the initial parameters; floating-point leaves are optimized, others are fixed.
    args: a tuple of further arguments of `fun`, or one; new values do not recompile.
    method: "lbfgs", with the full matrix for up to 64 parameters, otherwise 50 to 10
        pairs; or a transformation, which receives `value`, `grad` and `value_fn`.
        "auto" is "lbfgs", or what the other arguments need.
    bounds: a pair (lower, upper), each `None`, a scalar, or a tree like `x0` or a
        prefix of it; the method is then "lbfgsb".
    constraints: an `equality`, an `inequality`, a function that must be 0, SciPy's
        dicts, or a list of these; enforced by "sqp", sequential quadratic programming,
        for up to 100 parameters, otherwise by an augmented Lagrangian of `method`.
    tol: the largest |g| element at which to stop, >= 0; or `Tolerances`.
    max_steps: maximum number of steps, >= 0.
    history: whether to record value and gradient norm of each step, or for how many.
    callback: called with the intermediate result after each step; `True` stops.
    progress: whether to show a live progress line.
    project: whether to clip a start outside the bounds instead of raising an error.
    prox: a nonsmooth function to add, from `stepax.solve.prox`, or a dict from path
        patterns to such functions; the method is then accelerated proximal gradient.

    The result is differentiable with respect to `args` and values that `fun` closes
    over, by the implicit function theorem; see `docs/minimize.md`.

    Raises a `TypeError` or a `ValueError` for bad arguments, with their path.  Lack of
    convergence is not an error but a `status`.

    >>> stepax.minimize(lambda x: jnp.sum((x - 3.0) ** 2), jnp.zeros(2)).params
    Array([3., 3.], dtype=float32)
    """
    options = Options(args, tol, max_steps, has_aux, history, callback, progress)
    call = Call("fun", "value", fun, x0, options, bounds, project)
    inputs, frame = call.inputs, call.setup.frame
    limits, limited, arrays = open_constraints(constraints, frame)
    own, weights = _operator(prox, method, bounds, limits)
    call.inputs = inputs._replace(data=(*inputs.data, arrays), weights=weights)
    kind = Loop if own is None else Proximal
    call.compile(
        kind if limits is None else _kind(method, inputs.moving),
        limited,
        method=_method(method, bounds, limits),
        is_local=_on_one_device(inputs.moving),
        constraints=limits,
        prox=own,
    )
    found = call.run()
    if own is None:
        found = attach(call.both, call.inputs, found)
    else:
        found = attach_nonsmooth(call.setup, call.both, call.inputs, found)
    return found._replace(params=call.params(found.params))


def _kind(method: Any, moving: list) -> Any:
    if not isinstance(method, str) or method not in ("auto", "sqp"):
        return Constrained
    if method == "sqp":
        return Sequential
    known = (x for x in moving if not isinstance(x, Tracer))
    is_spread = any(map(is_placed, moving)) or any(len(x.devices()) > 1 for x in known)
    return Constrained if is_spread else by_size


def _method(method: Any, bounds: Any, limits: Any) -> Any:
    """The transformation, `None` for L-BFGS; with bounds, a factory of it."""
    if not isinstance(method, str):
        if bounds is None:
            require_transformation(method, "`method`")
            return method
        raise ValueError(
            "`bounds` need the method 'lbfgsb', but `method` is a transformation; omit "
            "it, or write a loop that projects"
        )
    if method not in ("auto", "lbfgs", "lbfgsb", "sqp"):
        raise ValueError(
            f"`method` is {method!r}, expected 'auto', 'lbfgs', 'lbfgsb', 'sqp', or a "
            "transformation such as `stepax.adam(1e-2)`; 'lbfgs' and 'lbfgsb' "
            "correspond to SciPy's 'BFGS' and 'L-BFGS-B', and 'sqp' to 'SLSQP' and "
            "'trust-constr'"
        )
    if method == "sqp" and limits is None:
        raise ValueError(
            "the method 'sqp' is for `constraints`, but there are none; omit it"
        )
    if bounds is None:
        return None
    from ..._optimizers.lbfgsb import lbfgsb

    return lbfgsb


def _operator(prox: Any, method: Any, bounds: Any, limits: Any) -> tuple[Any, list]:
    """The frame of the operator of a nonsmooth function, and its arrays."""
    if prox is None:
        return None, []
    if bounds is not None or limits is not None:
        name = "bounds" if bounds is not None else "constraints"
        raise ValueError(
            f"`prox` cannot be combined with `{name}`: write bounds as "
            "`prox.box(lower, upper)`, and other simple sets as the operators of "
            "`stepax.solve.prox`"
        )
    if not isinstance(method, str) or method != "auto":
        raise ValueError(
            f"`method` is {method!r}, but `prox` needs accelerated proximal gradient, "
            "which is 'auto'; for another optimizer, end a chain with "
            "`stepax.proximal`"
        )
    return open_arguments(as_operator(prox))


def _on_one_device(xs: list) -> bool:
    if jax.device_count() == 1:
        return True
    is_traced = any(isinstance(x, Tracer) for x in xs)
    return not is_traced and all(len(x.devices()) == 1 for x in xs)
