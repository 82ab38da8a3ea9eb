"""`root` and `fixed_point`: solve f(x) = 0 and f(x) = x."""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from ..._engine.base import is_array
from ..._engine.trees import errors
from .._minimize import implicit
from .._minimize.call import Call, Options, is_number, whole_number
from .._minimize.progress import result_so_far
from .._minimize.result import History, Result
from .._minimize.stop import Tolerances
from .._minimize.words import FIXED_POINT, ROOT, answering
from .bracket import Bracket
from .loop import Iteration
from .newton import Anderson, Broyden, NewtonKrylov
from .trust_region import TrustRegion


# The largest number of unknowns for which "auto" forms the Jacobian.
_MOST = 1_000
_METHODS: dict[str, tuple] = {
    "newton": (TrustRegion, "linear", "forward", "qr", True),
    "krylov": (NewtonKrylov,),
    "broyden": (Broyden,),
}


@answering(ROOT)
def root(
    f: Callable[..., Any],
    x0: Any = None,
    *,
    args: Any = (),
    method: Literal["auto", "newton", "krylov", "broyden"] = "auto",
    bracket: Any = None,
    tol: ArrayLike | Tolerances | None = None,
    max_steps: ArrayLike = 1_000,
    has_aux: bool = False,
    history: bool | int = False,
    callback: Callable[[Result], Any] | None = None,
    progress: bool = False,
) -> Result:
    """Find a root of a function of any tree, in one compiled loop: f(x, *args) = 0.

    f: a function of the unknowns and `args` that returns a tree like the unknowns.
    x0: the first unknowns; floating-point leaves change, others are fixed.  With a
        bracket it may be left out.
    args: further arguments of `f`, a tuple, or a single one; other values of the same
        shapes do not recompile.
    method: "newton", with the Jacobian, in a trust region of |f|²; "krylov", with
        products of the Jacobian; "broyden", with few Jacobians; "auto" is "newton" for
        up to 1,000 unknowns, otherwise "krylov".
    bracket: a pair (lower, upper), numbers or trees like `x0`, between which each
        element of f changes its sign; it depends on the same element of x alone.
    tol: the largest |f| element at which to stop, >= 0; or `Tolerances`, whose
        `gradient` is that, by default 9.5e-7 in float32 and 1.5e-8 in float64,
        relative to the start where that is below 1; with a bracket 0.
    max_steps: maximum number of steps, >= 0.
    has_aux: whether `f` returns a pair of its value and auxiliary arrays.
    history: whether to record the largest |f| of each step, or for how many.
    callback: called with the intermediate result after each step; `True` stops.
    progress: whether to show a live progress line.

    The result is differentiable in `args` and values that `f` closes over.  Lack of
    convergence, and a bracket without a change of sign, are a `status`.
    """
    if method not in ("auto", *_METHODS):
        known = ", ".join(map(repr, ("auto", *_METHODS)))
        raise ValueError(f"`method` is {method!r}, expected one of {known}")
    options = Options(args, tol, max_steps, has_aux, history, callback, progress)
    if bracket is None:
        if x0 is None:
            raise ValueError("`x0` is `None`, expected a start, or a `bracket`")
        many = sum(map(jnp.size, jax.tree.leaves(x0))) > _MOST
        auto = "krylov" if many else "newton"
        chosen = _METHODS[auto if method == "auto" else method]
        return _solve("root", f, x0, chosen, options)
    if method != "auto":
        raise ValueError(
            f"`bracket` has a method of its own, but `method` is {method!r}; omit one"
        )
    x0 = _middle(bracket) if x0 is None else x0
    return _solve("root", f, x0, (Bracket,), options, bracket=_ends(bracket))


def _middle(bracket: Any) -> Any:
    """A tree like the unknowns, from the ends of their intervals."""
    lower, upper = _ends(bracket)

    def half(x):
        is_real = jnp.issubdtype(jnp.result_type(x), jnp.inexact)
        return 0.5 * jnp.asarray(x, None if is_real else float)

    try:
        return jax.tree.map(lambda x, y: half(x) + half(y), lower, upper)
    except (TypeError, ValueError):
        raise ValueError(
            f"`bracket` is a pair of {errors.describe(lower)} and "
            f"{errors.describe(upper)}, expected numbers, arrays, or trees of them of "
            "the same structure, or `x0`, whose structure it then takes"
        ) from None


def _ends(bracket: Any) -> tuple[Any, Any]:
    is_pair = isinstance(bracket, tuple | list) and len(bracket) == 2
    if not is_pair or bracket[0] is None or bracket[1] is None:
        raise ValueError(
            f"`bracket` is {errors.describe(bracket)}, expected a pair of numbers or "
            "trees like `x0`: `bracket=(lower, upper)`"
        )
    for x in jax.tree.leaves(bracket):
        if is_array(x) and not isinstance(x, Tracer) and not np.isfinite(x).all():
            raise ValueError(f"`bracket` holds {x}, expected finite numbers")
    return bracket[0], bracket[1]


@answering(FIXED_POINT)
def fixed_point(
    f: Callable[..., Any],
    x0: Any,
    *,
    args: Any = (),
    memory: int = 5,
    damping: ArrayLike = 1.0,
    tol: ArrayLike | Tolerances | None = None,
    max_steps: ArrayLike = 1_000,
    has_aux: bool = False,
    history: bool | int = False,
    callback: Callable[[Result], Any] | None = None,
    progress: bool = False,
) -> Result:
    """Find a fixed point of a function of any tree, in one compiled loop.

        r = f(x, *args) - x,   c = argmin |r - dR c|²
        x = x + damping r - (dX + damping dR) c

    f: a function of the parameters and `args` that returns a tree like the parameters.
    x0: the first parameters; floating-point leaves change, others are fixed.
    args: further arguments of `f`, a tuple, or a single one; other values of the same
        shapes do not recompile.
    memory: number of last differences in dX and dR, >= 0; 0 is plain iteration.
    damping: in (0, 1]; below 1 where the plain iteration oscillates.
    tol: the largest element of |f(x) - x| at which to stop, >= 0; or `Tolerances`,
        whose `gradient` is that, by default 9.5e-7 in float32 and 1.5e-8 in float64,
        relative to the largest parameter so far.
    max_steps: maximum number of steps, >= 0, each with an evaluation.
    has_aux: whether `f` returns a pair of its value and auxiliary arrays.
    history: whether to record the largest |f(x) - x| of each step, or for how many.
    callback: called with the intermediate result after each step; `True` stops.
    progress: whether to show a live progress line.

    The result is differentiable in `args` and values that `f` closes over.  Lack of
    convergence is a `status`.
    """
    number = whole_number(memory)
    if number is None or number < 0:
        raise ValueError(f"`memory` is {memory!r}, expected an integer >= 0")
    if not is_number(damping, lambda x: 0 < x <= 1):
        raise ValueError(f"`damping` is {damping!r}, expected a number in (0, 1]")
    options = Options(args, tol, max_steps, has_aux, history, callback, progress)
    strength = jnp.asarray(damping, float)
    return _solve("fixed_point", f, x0, (Anderson, number), options, strength)


def _solve(kind, f, x0, method, options, number=None, bracket=None) -> Result:
    """The result of a method; `number` is one that it takes."""
    call = Call("f", kind, f, x0, options, bracket, True)
    call.inputs = call.inputs._replace(tol=(call.inputs.tol, number))
    call.compile(Iteration, method=method)
    so_far = lambda *at: _of_residuals(result_so_far(*at))
    found = _of_residuals(call.run(so_far, "largest residual {norm:.2e}"))
    fun = lambda xs, data: call.both(xs, data)[0]
    params, residuals, data = found.params, found.residuals, call.inputs.data
    if implicit.is_traced(data):
        one = implicit.solve_unique if bracket is None else implicit.solve_diagonal
        params = implicit.root_at(fun, params, data, one)
        residuals = implicit.output_at(fun, residuals, params, data)
    residuals = call.setup.frame.params(residuals)
    return found._replace(params=call.params(params), residuals=residuals)


def _of_residuals(found: Result) -> Result:
    """The result with the largest residual as value, and without a gradient."""
    history = found.history and History(found.history.grad_norm, None)
    return found._replace(value=found.grad_norm, grad_norm=None, history=history)
