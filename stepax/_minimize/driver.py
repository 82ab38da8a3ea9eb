"""`minimize`: run a method on a function from a start until it converges."""

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.typing import ArrayLike

from .._engine.base import is_array, require_transformation
from .._engine.functions.calls import explain_tracing
from .._engine.step.gradients import Gradients
from .._engine.trees import errors
from .._prox.operators import as_operator
from .active import attach_active
from .augmented import Constrained
from .constraints import open_constraints
from .frame import Frame, arguments_of, open_arguments, open_start
from .implicit import attach
from .loop import Inputs, Loop, Setup
from .nonsmooth import attach_nonsmooth
from .pack import is_placed
from .program import find_program
from .progress import result_so_far, run_program
from .proximal import Proximal
from .result import MinimizeResult
from .scipy_words import WORDS, answering, sides
from .sqp import Sequential, by_size
from .stop import Tolerances, check_tolerances


@answering(WORDS)
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
    callback: Callable[[MinimizeResult], Any] | None = None,
    progress: bool = False,
    project: bool = False,
    prox: Any = None,
) -> MinimizeResult:
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
    prox: a nonsmooth function to add, from `stepax.prox`, or a dict from path patterns
        to such functions; the method is then accelerated proximal gradient.

    The result is differentiable with respect to `args` and values that `fun` closes
    over, by the implicit function theorem; see `docs/minimize.md`.

    Raises a `TypeError` or a `ValueError` for bad arguments, with their path.  Lack of
    convergence is not an error but a `status`.
    """
    if not callable(fun):
        raise TypeError(
            f"`fun` is {errors.describe(fun)}, expected a function: the arguments of "
            "`minimize` are (fun, x0)"
        )
    frame, moving, staying = open_start(x0)
    args_frame, arrays = arguments_of("fun", fun, args)
    length = read_length(history, max_steps)
    limits, limited, limit_arrays = open_constraints(constraints, frame)
    own, weights = _operator(prox, method, bounds, limits)
    given, is_local = method, on_one_device(moving)
    method = _method(method, bounds, limits)
    setup = Setup(frame, args_frame, method, has_aux, length, is_local, limits, own)
    box, moving = open_box(bounds, frame, moving, project)
    limit = read_limit(max_steps)
    data = staying, arrays, limit_arrays
    inputs = Inputs(moving, data, box, check_tolerances(tol), limit, weights)
    kind = Loop if own is None else Proximal
    kind = kind if limits is None else _kind(given, moving)
    program, inputs = find_program(kind, _bind, setup, inputs, fun, limited)
    whole = lambda xs: frame.whole(program.unpack(inputs, xs), staying)
    so_far = lambda run: result_so_far(run, whole(run.at.xs))
    found = run_program(program, inputs, callback, progress, so_far)
    if own is not None:
        found = attach_nonsmooth(setup, program.both, inputs, found)
    else:
        attached = attach if limits is None else attach_active
        found = attached(program.both, inputs, found)
    return found._replace(params=frame.whole(found.params, staying))


def _kind(method: Any, moving: list) -> Any:
    """The loop for constraints."""
    if isinstance(method, str) and method == "sqp":
        return Sequential
    is_auto = isinstance(method, str) and method == "auto"
    return by_size if is_auto and not _is_spread(moving) else Constrained


def _is_spread(xs: list) -> bool:
    """Whether an array is known to be on several devices."""
    far = lambda x: not isinstance(x, Tracer) and len(x.devices()) > 1
    return any(is_placed(x) or far(x) for x in xs)


def _method(method: Any, bounds: Any, limits: Any) -> Any:
    """The transformation, `None` for L-BFGS; with bounds, a factory of it."""
    names = "auto", "lbfgs", "lbfgsb", "sqp"
    if isinstance(method, str) and method not in names:
        raise ValueError(
            f"`method` is {method!r}, expected 'auto', 'lbfgs', 'lbfgsb', 'sqp', or a "
            "transformation such as `stepax.adam(1e-2)`; 'lbfgs' and 'lbfgsb' "
            "correspond to SciPy's 'BFGS' and 'L-BFGS-B', and 'sqp' to 'SLSQP'"
        )
    if isinstance(method, str) and method == "sqp" and limits is None:
        raise ValueError(
            "the method 'sqp' is for `constraints`, but there are none; omit it"
        )
    if bounds is None:
        if not isinstance(method, str):
            require_transformation(method, "`method`")
        return None if isinstance(method, str) else method
    if not isinstance(method, str):
        raise ValueError(
            "`bounds` need the method 'lbfgsb', but `method` is a transformation; omit "
            "it, or write a loop that projects"
        )
    from .._optimizers.lbfgsb import lbfgsb

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
            "`stepax.prox`"
        )
    if not isinstance(method, str) or method != "auto":
        raise ValueError(
            f"`method` is {method!r}, but `prox` needs accelerated proximal gradient, "
            "which is 'auto'; for another optimizer, end a chain with "
            "`stepax.proximal`"
        )
    return open_arguments(as_operator(prox))


def on_one_device(xs: list) -> bool:
    """Whether all arrays are known to be on one device."""
    if jax.device_count() == 1:
        return True
    is_traced = any(isinstance(x, Tracer) for x in xs)
    return not is_traced and all(len(x.devices()) == 1 for x in xs)


def open_box(given: Any, frame: Frame, moving: list, project: bool) -> tuple[Any, list]:
    """The bounds of the optimized leaves, and the start clipped to them."""
    if given is None:
        return None, moving
    lower, upper = sides(given, frame, moving)
    params = frame.params(moving)
    from .._optimizers import bounds as boxes  # rarely needed

    boxes.check_sides(lower, upper)
    boxes.check(lower, upper, params, project)
    box = boxes.box_of(lower, upper, Gradients(params, params), frame.live)
    return box, boxes.clip(moving, box)


def read_limit(max_steps: Any) -> Any:
    """The maximum number of steps as an array."""
    if isinstance(max_steps, Tracer):
        return max_steps.astype(jnp.int32)
    try:
        number = operator.index(max_steps)
    except TypeError:
        number = -1
    if number < 0:
        raise ValueError(f"`max_steps` is {max_steps!r}, expected an integer >= 0")
    return jnp.asarray(min(number, jnp.iinfo(jnp.int32).max), jnp.int32)


def read_length(history: Any, max_steps: Any) -> int | None:
    """The number of steps to record in the history."""
    if history is False or history is None:
        return None
    length = max_steps if history is True else history
    try:
        return operator.index(length)
    except TypeError:
        raise ValueError(
            f"`history` is {history!r} and `max_steps` {max_steps!r}; the length of a "
            "history must be an integer that is known when the program is compiled"
        ) from None


def _bind(setup: Setup, get: Callable, *gets: Callable) -> Callable:
    """The function that `get` returns, as a function of lists of arrays.

    gets: callables that return the functions of the constraints, whose values are added
        to the aux.
    """

    def both(moving, data):
        staying, arrays, limits = data
        params = setup.frame.whole(moving, staying)
        args = setup.args_frame.whole((), arrays)
        with explain_tracing("`fun`"):
            out = get()(params, *args)
        value, aux = _checked(out, setup.has_aux)
        if setup.constraints is None:
            return value, aux
        funs = [get() for get in gets]
        return value, (aux, setup.constraints.values(funs, limits, params, args))

    return both


def _checked(out: Any, has_aux: bool) -> tuple[jax.Array, Any]:
    if has_aux and not (isinstance(out, tuple) and len(out) == 2):
        raise TypeError(
            f"`fun` returns {errors.describe(out)}, expected a pair of its value and "
            "auxiliary output, because `has_aux` is `True`"
        )
    value, aux = out if has_aux else (out, None)
    if not is_array(value):
        raise TypeError(
            f"`fun` returns {errors.describe(value)}, expected one real number; to "
            "return more, use `has_aux=True`"
        )
    # A Python int is accepted, unlike an integer array, which may be a mistake.
    value = jnp.asarray(float(value) if type(value) is int else value)
    if value.shape != () or not jnp.issubdtype(value.dtype, jnp.floating):
        raise ValueError(
            f"`fun` returns an array of shape {value.shape} and dtype {value.dtype}, "
            "expected one real number; sum it, or take the mean"
        )
    return value, aux
