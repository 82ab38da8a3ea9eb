"""Newton's method without a matrix, and the line search that it shares.

    J d = -f(x), to the precision |f(x) + J d| <= c |f(x)|, by GMRES
    x = x + t d,   t halved until |f|² falls by at least 2e-4 t of it

The precision c follows the progress of |f|.  Eisenstat and Walker, 1996, Choosing the
forcing terms in an inexact Newton method (DOI 10.1137/0917003), choice 2.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._linesearch.line import choose, hold
from .._minimize.bundle import while_loop
from .loop import (
    CONVERGED,
    NOT_FINITE,
    PRECISE,
    RUNNING,
    STUCK,
    Place,
    Problem,
    Stepper,
)


_COARSEST, _RESTART = 0.1, 40
_TRIALS, _ENOUGH = 20, 2e-4


class Search(NamedTuple):
    place: Place
    step: jax.Array
    count: jax.Array
    is_done: jax.Array


def backtrack(
    problem: Problem, at: Place, d: jax.Array, most: ArrayLike = _TRIALS
) -> Search:
    """The first point along d at which |f|² is lower, if there is one."""

    def attempt(s):
        x = at.x + s.step * d
        place = problem.place(x, problem.fun(x))
        is_lower = place.value <= (1 - _ENOUGH * s.step) * at.value
        is_done = is_lower | (at.value == jnp.inf)  # as at the start
        step = jnp.where(is_done, s.step, 0.5 * s.step)
        return Search(place, step, s.count + 1, is_done)

    one, zero = jnp.ones([], d.dtype), jnp.zeros([], jnp.int32)
    first = Search(at, one, zero, jnp.zeros([], bool))
    end = while_loop(lambda s: ~s.is_done & (s.count < most), attempt, first)
    return end._replace(place=choose(hold(end.is_done), end.place, at))


def code_of(problem: Problem, first: Any, at: Place, new: Place, is_done: Any) -> Any:
    """The code after a step, or after one that was not found."""
    # Where the residuals are as small as the rounding of the parameters makes them.
    size = jnp.maximum(jnp.max(jnp.abs(at.x)), 1)
    failure = jnp.where(at.norm <= 64 * problem.eps * size, PRECISE, STUCK)
    code = jnp.where(is_done, RUNNING, failure)
    if problem.short is not None:
        move = jnp.max(jnp.abs(new.x - at.x))
        is_short = (
            is_done & (move > 0) & (move <= problem.short * jnp.max(jnp.abs(new.x)))
        )
        code = jnp.where(is_short, PRECISE, code)
    code = jnp.where(new.norm <= problem.limit(first), CONVERGED, code)
    return jnp.where(jnp.isfinite(new.value), code, NOT_FINITE)


class _State(NamedTuple):
    first: jax.Array
    precision: jax.Array


class NewtonKrylov(Stepper):
    """The method for one problem."""

    def __init__(self, problem: Problem):
        self._problem = problem

    def begin(self, x: jax.Array) -> _State:
        return _State(jnp.zeros([], x.dtype), jnp.asarray(_COARSEST, x.dtype))

    def step(
        self, at: Place, state: _State, steps: jax.Array
    ) -> tuple[Place, _State, Any, jax.Array]:
        is_start = steps < 0
        precision = jnp.maximum(state.precision, 8 * self._problem.eps)
        d = jax.lax.cond(
            is_start,
            lambda: jnp.zeros_like(at.x),
            lambda: self._direction(at, precision),
        )
        found = backtrack(self._problem, at, d)
        first = jnp.where(is_start, found.place.norm, state.first)
        ratio = jnp.where(is_start, 1, found.place.value / at.value)
        following = jnp.minimum(0.9 * ratio, _COARSEST).astype(precision.dtype)
        code = code_of(self._problem, first, at, found.place, found.is_done)
        count = found.count + jnp.where(is_start, 0, 1)
        return found.place, _State(first, following), count, code

    def _direction(self, at: Place, precision: jax.Array) -> jax.Array:
        push: Callable = jax.linearize(self._problem.fun, at.x)[1]
        restart = min(len(at.x), _RESTART)
        gmres: Callable = jax.scipy.sparse.linalg.gmres  # whose `tol` is typed a float
        d, _ = gmres(push, -at.r, tol=precision, restart=restart, maxiter=5)
        return jnp.where(jnp.isfinite(d), d, 0)
