"""Anderson acceleration of a fixed-point iteration.

    r = f(x) - x,   c = argmin |r - dR c|²,   x = x + b r - (dX + b dR) c

where the columns of dX and dR are the differences of the last iterations, and b is the
damping.  Without columns this is the plain iteration x = x + b r.  A step after which
|r| is more than twice as large is undone, and the columns are dropped.

Anderson, 1965, Iterative procedures for nonlinear integral equations (DOI
10.1145/321296.321305); Walker and Ni, 2011, Anderson acceleration for fixed-point
iterations (DOI 10.1137/10078356X).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

from ..._linesearch.line import choose, hold
from .._minimize.result import Code
from .loop import Place, Problem, Step, Stepper
from .models import triangle


# The growth of |r| above which a step is undone.
_GROWTH = 2.0


class _State(NamedTuple):
    """The columns of dX and dR, of shape (memory, n).

    count: number of columns that were stored since the last restart.
    size: the largest parameter so far.
    """

    dx: jax.Array
    dr: jax.Array
    count: jax.Array
    size: jax.Array


class Anderson(Stepper):
    """The method for one problem, whose number is the damping."""

    def __init__(self, problem: Problem, memory: int):
        super().__init__(problem)
        self._memory = min(memory, problem.columns)

    def begin(self, x: jax.Array) -> _State:
        empty, none = jnp.zeros((self._memory, len(x)), x.dtype), jnp.zeros([], x.dtype)
        return _State(empty, empty, jnp.zeros([], jnp.int32), none)

    def step(self, at: Place, state: _State, steps: jax.Array) -> Step:
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
            # The differences in place of the oldest, or none.
            k = state.count % self._memory
            put = lambda xs, x: jnp.where(is_pair, xs.at[k].set(x), 0)
            state = state._replace(
                dx=put(state.dx, new.x - at.x),
                dr=put(state.dr, new.r - at.r),
                count=jnp.where(is_pair, state.count + 1, 0),
            )
        new = choose(is_taken, new, at)
        limit = problem.tol.gradient
        if limit is None:
            limit = max(8 * problem.eps, 2.0**-26) * state.size
        code = self._code(at, new, Code.RUNNING, limit, state.size)
        return new, state, 1, jnp.where(is_fine | ~is_plain, code, Code.NOT_FINITE)


def _combine(dr: jax.Array, r: jax.Array) -> jax.Array:
    """c; 0 for rows that are 0."""
    norms = jnp.sqrt(jnp.sum(dr * dr, axis=1))
    safe = jnp.where(norms > 0, norms, 1)
    m = len(safe)
    # Columns that nearly depend on each other shall not have large coefficients.
    below = float(jnp.finfo(r.dtype).eps) ** 0.75 * jnp.eye(m + 1, m, dtype=r.dtype)
    rows = jnp.concatenate([dr / safe[:, None], r[None]])
    found = triangle(jnp.concatenate([rows, below], axis=1))
    return solve_triangular(found[:-1].T, found[-1]) / safe
