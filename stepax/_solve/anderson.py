"""Anderson acceleration of a fixed-point iteration.

    r = f(x) - x,   c = argmin |r - dR c|²,   x = x + b r - (dX + b dR) c

where the columns of dX and dR are the differences of the last iterations, and b is the
damping.  Without columns this is the plain iteration x = x + b r.  A step after which
|r| is more than twice as large is undone, and the columns are dropped.

Anderson, 1965, Iterative procedures for nonlinear integral equations (DOI
10.1145/321296.321305); Walker and Ni, 2011, Anderson acceleration for fixed-point
iterations (DOI 10.1137/10078356X).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

from .._linesearch.line import choose, hold
from .dense import triangle
from .loop import CONVERGED, NOT_FINITE, PRECISE, RUNNING, Place, Problem, Stepper


# The growth of |r| above which a step is undone.
_GROWTH = 2.0


class Anderson(NamedTuple):
    """The options of the method; the damping is the number of the problem."""

    memory: int

    def __call__(self, problem: Problem) -> "_Stepper":
        return _Stepper(min(self.memory, problem.columns), problem)


class _State(NamedTuple):
    """The columns of dX and dR, of shape (memory, n).

    count: number of columns that were stored since the last restart.
    size: the largest parameter so far.
    """

    dx: jax.Array
    dr: jax.Array
    count: jax.Array
    size: jax.Array


class _Stepper(Stepper):
    """The method for one problem."""

    def __init__(self, memory: int, problem: Problem):
        self._memory, self._problem = memory, problem

    def begin(self, x: jax.Array) -> _State:
        empty, none = jnp.zeros((self._memory, len(x)), x.dtype), jnp.zeros([], x.dtype)
        return _State(empty, empty, jnp.zeros([], jnp.int32), none)

    def step(
        self, at: Place, state: _State, steps: jax.Array
    ) -> tuple[Place, _State, Any, jax.Array]:
        problem, damping = self._problem, self._problem.number.astype(at.x.dtype)
        is_start = steps < 0
        x = at.x + damping * at.r
        if self._memory:
            c = _combine(state.dr, at.r)
            x = x - c @ (state.dx + damping * state.dr)
        new = problem.place(x, problem.fun(x))
        is_plain = state.count == 0
        is_fine = jnp.isfinite(new.value)
        is_lower = is_plain | (new.value <= _GROWTH**2 * at.value)
        is_taken = hold(is_start | is_fine & is_lower)
        image = jnp.where(is_start, x + new.r, x)
        size = jnp.maximum(state.size, jnp.max(jnp.abs(image)))
        state = state._replace(size=jnp.where(is_taken, size, state.size))
        if self._memory:
            is_pair = is_taken & ~is_start
            state = self._remember(state, new.x - at.x, new.r - at.r, is_pair)
        new = choose(is_taken, new, at)
        return new, state, 1, self._code(at, new, state, is_fine | ~is_plain)

    def _remember(self, state: _State, s: Any, y: Any, is_taken: Any) -> _State:
        """The state with differences in place of the oldest, or without any."""
        k = state.count % self._memory
        put = lambda xs, x: jnp.where(is_taken, xs.at[k].set(x), 0)
        count = jnp.where(is_taken, state.count + 1, 0)
        return state._replace(dx=put(state.dx, s), dr=put(state.dr, y), count=count)

    def _code(self, at: Place, new: Place, state: _State, is_fine: Any) -> jax.Array:
        limit = self._problem.tol.gradient
        if limit is None:
            limit = max(8 * self._problem.eps, 2.0**-26) * state.size
        code = jnp.where(new.norm <= limit, CONVERGED, RUNNING)
        if self._problem.short is not None:
            move = jnp.max(jnp.abs(new.x - at.x))
            is_short = (move > 0) & (move <= self._problem.short * state.size)
            code = jnp.where(is_short & (code == RUNNING), PRECISE, code)
        is_fine = is_fine & jnp.isfinite(new.value)
        return jnp.where(is_fine, code, NOT_FINITE)


def _combine(dr: jax.Array, r: jax.Array) -> jax.Array:
    """c; 0 for rows that are 0."""
    norms = jnp.sqrt(jnp.sum(dr * dr, axis=1))
    safe = jnp.where(norms > 0, norms, 1)
    m = len(safe)
    # Columns that nearly depend on each other shall not have large coefficients.
    below = float(jnp.finfo(r.dtype).eps) ** 0.75 * jnp.eye(m, dtype=r.dtype)
    a = jnp.concatenate([(dr / safe[:, None]).T, below])
    upper, q = triangle(a, jnp.concatenate([r, jnp.zeros(m, r.dtype)]))
    return solve_triangular(upper, q) / safe
