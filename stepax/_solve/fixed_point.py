"""`fixed_point`: solve x = f(x) by Anderson acceleration."""

import operator
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from .._engine.base import is_array
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
