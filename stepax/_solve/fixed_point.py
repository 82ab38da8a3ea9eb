"""`fixed_point`: solve x = f(x) by Anderson acceleration."""

import operator
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from .._engine.base.protocol import is_array
from .._minimize.scipy_words import answering
from .._minimize.stop import Tolerances
from .anderson import Anderson
from .call import Options
from .result import SolveResult
from .root import solve
from .words import FIXED_POINT


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
    callback: Callable[[SolveResult], Any] | None = None,
    progress: bool = False,
) -> SolveResult:
    """Find a fixed point of a function of any tree, in one compiled loop.

        r = f(x, *args) - x,   c = argmin |r - dR c|²
        x = x + b r - (dX + b dR) c

    where dX and dR hold the differences of the last iterations, and b is the damping.

    f: a function of the parameters and `args` that returns a tree like the parameters.
    x0: the first parameters; floating-point leaves change, others are fixed.
    args: further arguments of `f`, a tuple, or a single one; other values of the same
        shapes do not recompile.
    memory: number of differences to combine, >= 0; 0 is plain iteration.
    damping: b, in (0, 1]; less than 1 where the plain iteration oscillates.
    tol: the largest element of |f(x) - x| at which to stop, >= 0; or `Tolerances`,
        where `gradient` is that, by default 9.5e-7 in float32 and 1.5e-8 in float64,
        relative to the largest parameter so far.
    max_steps: maximum number of steps, >= 0, each with an evaluation.
    has_aux: whether `f` returns a pair of its value and auxiliary arrays.
    history, callback, progress: as in `minimize`.

    The result is differentiable with respect to `args` and values that `f` closes over,
    by the implicit function theorem.

    Raises a `TypeError` or a `ValueError` for bad arguments, with their path.  Lack of
    convergence is a `status`.

    Anderson, 1965, Iterative procedures for nonlinear integral equations.
    """
    try:
        number = operator.index(memory)
    except TypeError:
        number = -1
    if number < 0:
        raise ValueError(f"`memory` is {memory!r}, expected an integer >= 0")
    if not (is_array(damping) and jnp.shape(damping) == ()) or not (
        isinstance(damping, Tracer) or 0 < np.asarray(damping) <= 1
    ):
        raise ValueError(f"`damping` is {damping!r}, expected a number in (0, 1]")
    options = Options(args, tol, max_steps, has_aux, history, callback, progress)
    strength = jnp.asarray(damping, float)
    return solve("fixed_point", f, x0, Anderson(number), options, strength)
