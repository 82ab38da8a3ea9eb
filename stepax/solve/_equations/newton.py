"""Newton's method with a line search, without a matrix, and Broyden's; Anderson's.

    J d = -f(x),   x = x + t d,   t halved until |f|² falls by at least 2e-4 t of it

"krylov" solves to the precision |f(x) + J d| <= c |f(x)| by GMRES, where c follows the
progress of |f|.  Eisenstat and Walker, 1996, Choosing the forcing terms in an inexact
Newton method (DOI 10.1137/0917003), choice 2.

"broyden" has an inverse Jacobian that follows from the steps:

    d = -H f(x),   H = H + (s - H y) s'H / (s'H y)   with s, y the last differences

The inverse H is that of the Jacobian at the start, and once more where no step along d
is an improvement.  Broyden, 1965, A class of methods for solving nonlinear simultaneous
equations (DOI 10.1090/S0025-5718-1965-0198670-6).

A fixed-point iteration is accelerated by Anderson's method:

    r = f(x) - x,   c = argmin |r - dR c|²,   x = x + b r - (dX + b dR) c

where the columns of dX and dR are the differences of the last iterations, and b is the
damping.  Without columns this is the plain iteration x = x + b r.  A step after which
|r| is more than twice as large is undone, and the columns are dropped.

Anderson, 1965, Iterative procedures for nonlinear integral equations (DOI
10.1145/321296.321305); Walker and Ni, 2011, Anderson acceleration for fixed-point
iterations (DOI 10.1137/10078356X).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

from ..._linesearch.line import choose, hold
from .._minimize.bundle import while_loop
from .._minimize.result import Code
from .loop import Place, Problem, Step, Stepper
from .models import triangle


_COARSEST, _RESTART = 0.1, 40
# Trials along a direction, and along that of an inverse that may be outdated.
_TRIALS, _TRIALS_OLD, _ENOUGH = 20, 3, 2e-4


class _Search(NamedTuple):
    place: Place
    step: jax.Array
    count: jax.Array
    is_done: jax.Array


class _Newton(Stepper):
    """What both methods have in common."""

    def _backtrack(self, at: Place, d: jax.Array, most: Any = _TRIALS) -> _Search:
        """The first point along d at which |f|² is lower, if there is one."""

        def attempt(s):
            x = at.x + s.step * d
            place = self._problem.place(x, self._problem.fun(x))
            is_lower = place.value <= (1 - _ENOUGH * s.step) * at.value
            is_done = is_lower | (at.value == jnp.inf)  # as at the start
            step = jnp.where(is_done, s.step, 0.5 * s.step)
            return _Search(place, step, s.count + 1, is_done)

        one, zero = jnp.ones([], d.dtype), jnp.zeros([], jnp.int32)
        first = _Search(at, one, zero, jnp.zeros([], bool))
        end = while_loop(lambda s: ~s.is_done & (s.count < most), attempt, first)
        return end._replace(place=choose(hold(end.is_done), end.place, at))

    def _outcome(self, first: Any, at: Place, d: Any, found: _Search) -> jax.Array:
        """The code after a step along d, or after one that was not found."""

        def is_exact():
            """Whether Newton's step is known, and rounding hides it in x."""
            left = at.r + jax.jvp(self._problem.fun, (at.x,), (d,))[1]
            is_known = jnp.sum(left**2) <= 0.25 * jnp.sum(at.r**2)
            size = 64 * self._problem.eps * jnp.max(jnp.abs(at.x))
            return is_known & (jnp.max(jnp.abs(d)) <= size)

        ends = jax.lax.cond(found.is_done, lambda: jnp.zeros([], bool), is_exact)
        failure = jnp.where(ends, Code.STEP, Code.STUCK)
        code = jnp.where(found.is_done, Code.RUNNING, failure)
        new, limit = found.place, self._problem.limit(first)
        return self._code(at, new, code, limit, jnp.max(jnp.abs(new.x)))


class _Forcing(NamedTuple):
    first: jax.Array
    precision: jax.Array


class NewtonKrylov(_Newton):
    def begin(self, x: jax.Array) -> _Forcing:
        return _Forcing(jnp.zeros([], x.dtype), jnp.asarray(_COARSEST, x.dtype))

    def step(self, at: Place, state: _Forcing, steps: jax.Array) -> Step:
        is_start = steps < 0
        precision = jnp.maximum(state.precision, 8 * self._problem.eps)
        d = jax.lax.cond(
            is_start,
            lambda: jnp.zeros_like(at.x),
            lambda: self._direction(at, precision),
        )
        found = self._backtrack(at, d)
        first = jnp.where(is_start, found.place.norm, state.first)
        ratio = jnp.where(is_start, 1, found.place.value / at.value)
        following = jnp.minimum(0.9 * ratio, _COARSEST).astype(precision.dtype)
        code = self._outcome(first, at, d, found)
        count = found.count + jnp.where(is_start, 0, 1)
        return found.place, _Forcing(first, following), count, code

    def _direction(self, at: Place, precision: jax.Array) -> jax.Array:
        push: Callable = jax.linearize(self._problem.fun, at.x)[1]
        restart = min(len(at.x), _RESTART)
        gmres: Callable = jax.scipy.sparse.linalg.gmres  # whose `tol` is typed a float
        # GMRES takes what is below the rounding of 1 for 0.
        unit = jnp.where(at.norm > 0, at.norm, 1)
        product = lambda v: push(v) / unit
        d, _ = gmres(product, -at.r / unit, tol=precision, restart=restart, maxiter=5)
        return jnp.where(jnp.isfinite(d), d, 0)


class _Inverse(NamedTuple):
    """The inverse Jacobian; `age` counts its updates."""

    first: jax.Array
    inverse: jax.Array
    age: jax.Array


class Broyden(_Newton):
    def begin(self, x: jax.Array) -> _Inverse:
        n, zero = len(x), jnp.zeros([], jnp.int32)
        return _Inverse(jnp.zeros([], x.dtype), jnp.zeros((n, n), x.dtype), zero)

    def step(self, at: Place, state: _Inverse, steps: jax.Array) -> Step:
        problem, h, is_start = self._problem, state.inverse, steps < 0
        d = -(h @ at.r)
        is_new = state.age == 0
        most = jnp.where(is_new, _TRIALS, _TRIALS_OLD)
        found = self._backtrack(at, d, most)
        s, y = found.place.x - at.x, found.place.r - at.r
        hy, sh = h @ y, s @ h
        inner = s @ hy
        fits = jnp.abs(inner) > problem.eps * jnp.sqrt(jnp.sum(s * s) * jnp.sum(hy**2))
        change = (s - hy)[:, None] * (sh / jnp.where(fits, inner, 1))[None]
        updated = h + jnp.where(fits & found.is_done, change, 0)
        is_kept = found.is_done & ~is_start
        inverse = jax.lax.cond(is_kept, lambda: updated, lambda: self._inverse_at(at.x))
        age = jnp.where(is_kept, state.age + 1, 0)
        first = jnp.where(is_start, found.place.norm, state.first)
        code = self._outcome(first, at, d, found)
        # With a new inverse there is another attempt.
        code = jnp.where(found.is_done | is_new, code, Code.RUNNING)
        return found.place, _Inverse(first, inverse, age), found.count, code

    def _inverse_at(self, x: jax.Array) -> jax.Array:
        push = jax.linearize(self._problem.fun, x)[1]
        j = jax.vmap(push, out_axes=1)(jnp.eye(len(x), dtype=x.dtype))
        # Of the least norm where the Jacobian is singular.
        return jnp.linalg.pinv(jnp.where(jnp.isfinite(j), j, 0))


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
