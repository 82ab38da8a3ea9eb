"""`least_squares`: minimize the sum of squares of residuals, or of a robust loss."""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.typing import ArrayLike

from .._engine.base import is_array
from .._minimize.result import MinimizeHistory
from .._minimize.scipy_words import answering
from .._minimize.stop import Tolerances
from .call import Options, open_call
from .derivatives import attach_least
from .losses import LOSSES
from .result import LeastSquaresResult
from .trust_region import TrustRegion
from .words import LEAST_SQUARES


# The words of the arguments that take one.
_WORDS = {
    "loss": tuple(LOSSES),
    "jacobian": ("auto", "forward", "reverse"),
    "solver": ("auto", "qr", "cg"),
}


@answering(LEAST_SQUARES)
def least_squares(
    residuals: Callable[..., Any],
    x0: Any,
    *,
    args: Any = (),
    bounds: Any = None,
    loss: Literal["linear", "huber", "soft_l1", "cauchy"] = "linear",
    scale: ArrayLike = 1.0,
    jacobian: Literal["auto", "forward", "reverse"] = "auto",
    solver: Literal["auto", "qr", "cg"] = "auto",
    tol: ArrayLike | Tolerances | None = None,
    max_steps: ArrayLike = 1_000,
    has_aux: bool = False,
    history: bool | int = False,
    callback: Callable[[LeastSquaresResult], Any] | None = None,
    progress: bool = False,
    project: bool = False,
) -> LeastSquaresResult:
    """Minimize a sum of squares over any tree, by Levenberg and Marquardt's method.

        minimize 0.5 sum(rho(r**2)),   r = residuals(x, *args)
        s = argmin |J s + r|²  with |D s| <= radius,   x = x + s if the value falls

    residuals: a function of the parameters and `args` that returns a tree of arrays.
    x0: the initial parameters; floating-point leaves are optimized, others are fixed.
    args: further arguments of `residuals`, a tuple, or a single one; other values of
        the same shapes do not recompile.
    bounds: a pair (lower, upper), each `None`, a scalar, or a tree like `x0` or a
        prefix of it.
    loss: rho(z): "linear" is z; "huber" 2 sqrt(z) - 1 for z > 1, otherwise z;
        "soft_l1" 2 (sqrt(1 + z) - 1); "cauchy" log(1 + z).
    scale: the residual, > 0, where a robust loss bends: scale² rho((r / scale)²).
    jacobian: "forward" computes J by columns, "reverse" by rows, "auto" what is less.
    solver: "qr" factorizes J, "cg" only multiplies by it; "auto" is "qr" for up to
        1,000 parameters and 10 million elements of J.
    tol: the largest |g| element at which to stop, >= 0; or `Tolerances`, whose
        `gradient` is, by default, the cosine between r and a column of J.
    max_steps: maximum number of steps, >= 0.
    has_aux: whether `residuals` returns a pair of residuals and auxiliary arrays.
    history: whether to record value and gradient norm of each step, or for how many.
    callback: called with the intermediate result after each step; `True` stops.
    progress: whether to show a live progress line.
    project: whether to clip a start outside the bounds instead of raising an error.

    The result is differentiable in `args`, `scale` and values that `residuals` closes
    over; see `docs/solving.md`.  Lack of convergence is a `status`.

    Raises a `TypeError` or a `ValueError` for bad arguments, with their path.
    """
    for name, word in ("loss", loss), ("jacobian", jacobian), ("solver", solver):
        if word not in _WORDS[name]:
            known = ", ".join(map(repr, _WORDS[name]))
            raise ValueError(f"`{name}` is {word!r}, expected one of {known}")
    options = Options(args, tol, max_steps, has_aux, history, callback, progress)
    method = TrustRegion(loss, jacobian, solver)
    more = options, _scale(scale), bounds, project
    call = open_call("residuals", "residuals", residuals, x0, method, *more)

    def so_far(run):
        numbers = run.at.value, None, run.at.norm, run.steps, run.evaluations, run.code
        return LeastSquaresResult(call.so_far(run), *numbers)

    found = call.run(options, so_far)
    found = attach_least(call.program.both, call.inputs, found, loss)
    numbers = found.norm, found.steps, found.evaluations, found.code, found.aux
    course = found.history and MinimizeHistory(*found.history)
    outputs = found.value, found.residuals, *numbers, course, found.more
    return LeastSquaresResult(call.params(found.params), *outputs)


def _scale(scale: Any) -> jax.Array:
    """The scale of a loss as an array."""
    is_number = is_array(scale) and jnp.shape(scale) == ()
    if not is_number or not (isinstance(scale, Tracer) or float(scale) > 0):
        raise ValueError(f"`scale` is {scale!r}, expected a number > 0")
    return jnp.asarray(scale, float)
