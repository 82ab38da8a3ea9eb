"""`least_squares`: minimize the sum of squares of residuals, or of a robust loss."""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ..._engine.trees import errors
from .._minimize import implicit
from .._minimize.call import Call, Options, is_number
from .._minimize.loop import Inputs
from .._minimize.pack import split
from .._minimize.result import Result
from .._minimize.watch import Tolerances
from .._minimize.words import LEAST_SQUARES, answering
from .loop import Iteration
from .models import LOSSES, value_of
from .trust_region import TrustRegion


# The words of the arguments that take one.
_WORDS = {
    "loss": ("linear", *LOSSES),
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
    callback: Callable[[Result], Any] | None = None,
    progress: bool = False,
    project: bool = False,
) -> Result:
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
        errors.require_one_of(name, word, _WORDS[name])
    if not is_number(scale, lambda x: x > 0):
        raise ValueError(f"`scale` is {scale!r}, expected a number > 0")
    options = Options(args, tol, max_steps, has_aux, history, callback, progress)
    call = Call("residuals", "residuals", residuals, x0, options, bounds, project)
    # The loss takes its scale as an input.
    call.inputs = call.inputs._replace(tol=(call.inputs.tol, jnp.asarray(scale, float)))
    call.compile(Iteration, method=(TrustRegion, loss, jacobian, solver))
    found = _attach(call.both, call.inputs, call.run(), loss)
    return found._replace(params=call.params(found.params))


def _attach(both: Callable, inputs: Inputs, found: Result, loss: str) -> Result:
    """The result with its derivatives, where they can exist.

    both: maps lists of arrays, moving and other, to the residuals and the aux output.
    """
    data = (inputs.data, inputs.tol[1]), inputs.box
    if not implicit.is_traced(data):
        return found

    def value(xs, given):
        arrays, scale = given
        # By leaves, and not as one vector, which may have another dtype.
        parts = split(jax.tree.leaves(both(xs, arrays)[0]))
        dtype = found.value.dtype
        values = [value_of(loss, scale, x.reshape(-1).astype(dtype)) for x in parts]
        return sum(values, jnp.zeros([], dtype))

    def solve(product, b):
        if sum(x.size for x in jax.tree.leaves(b)) > implicit.MOST:
            return implicit.solve_definite(product, b)
        return implicit.solve_linear(product, b)

    at = lambda *at: (value(*at), (None, implicit.NO_ROWS))
    xs, _ = implicit.minimum_at(at, found.params, data, solve)
    number = implicit.value_at(value, found.value, xs, data[0])
    outputs = found.residuals, xs, inputs.data
    residuals = implicit.output_at(lambda *at: both(*at)[0], *outputs)
    return found._replace(params=xs, value=number, residuals=residuals)
