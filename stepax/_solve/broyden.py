"""Broyden's method: Newton's, with a Jacobian that follows from the steps.

    d = -H f(x),   H = H + (s - H y) s'H / (s'H y)   with s, y the last differences

The inverse H is that of the Jacobian at the start, and once more where no step along d
is an improvement.  Broyden, 1965, A class of methods for solving nonlinear simultaneous
equations (DOI 10.1090/S0025-5718-1965-0198670-6).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .loop import RUNNING, Place, Problem, Stepper
from .newton_krylov import backtrack, code_of


# Trials along a direction of an inverse that may be outdated, and of a new one.
_TRIALS_OLD, _TRIALS = 3, 20


class _State(NamedTuple):
    """The inverse Jacobian; `age` counts its updates."""

    first: jax.Array
    inverse: jax.Array
    age: jax.Array


class Broyden(Stepper):
    """The method for one problem."""

    def __init__(self, problem: Problem):
        self._problem = problem

    def begin(self, x: jax.Array) -> _State:
        n, zero = len(x), jnp.zeros([], jnp.int32)
        return _State(jnp.zeros([], x.dtype), jnp.zeros((n, n), x.dtype), zero)

    def step(
        self, at: Place, state: _State, steps: jax.Array
    ) -> tuple[Place, _State, Any, jax.Array]:
        problem, h, is_start = self._problem, state.inverse, steps < 0
        d = -(h @ at.r)
        is_new = state.age == 0
        most = jnp.where(is_new, _TRIALS, _TRIALS_OLD)
        found = backtrack(problem, at, d, most)
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
        code = code_of(problem, first, at, found.place, found.is_done)
        # With a new inverse there is another attempt.
        code = jnp.where(found.is_done | is_new, code, RUNNING)
        return found.place, _State(first, inverse, age), found.count, code

    def _inverse_at(self, x: jax.Array) -> jax.Array:
        push = jax.linearize(self._problem.fun, x)[1]
        j = jax.vmap(push, out_axes=1)(jnp.eye(len(x), dtype=x.dtype))
        # Of the least norm where the Jacobian is singular.
        return jnp.linalg.pinv(jnp.where(jnp.isfinite(j), j, 0))
