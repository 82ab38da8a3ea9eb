"""Roots of independent scalars, each between two points of opposite signs, by ITP.

The next point of each is where the secant meets 0, moved towards the middle, and only
so far from the middle that there are at most eight steps more than bisection takes.

Oliveira and Takahashi, 2020, An enhancement of the bisection method average performance
preserving minmax optimality (DOI 10.1145/3423597), with k1 = 0.2 / (b - a), k2 = 2 and
n0 = 8.  All elements take their steps together; one that is done does not change.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._minimize.result import Code
from .loop import Place, Step, Stepper


# The steps beyond those of bisection, which a curved function may take at the start.
_K1, _SLACK = 0.2, 8


class _State(NamedTuple):
    """The ends of the intervals, with the values there; all of shape (n,).

    half: half the width at which an interval is done.
    room: half the width that an interval may have now, as n0 halvings are spare.
    k1: the strength of the move towards the middle.
    is_open: whether an element is not done.
    """

    a: jax.Array
    b: jax.Array
    fa: jax.Array
    fb: jax.Array
    half: jax.Array
    room: jax.Array
    k1: jax.Array
    is_open: jax.Array


class Bracket(Stepper):
    def begin(self, x: jax.Array) -> _State:
        """The state with the upper ends evaluated; the first step does the others."""
        a, b = self._problem.box
        size = jnp.maximum(jnp.abs(a), jnp.abs(b))
        short = self._problem.short
        precision = 2 * self._problem.eps if short is None else short
        half = jnp.maximum(precision * size, jnp.finfo(a.dtype).tiny)
        width = b - a
        halvings = jnp.ceil(jnp.log2(jnp.maximum(width / (2 * half), 1)))
        # Twice that, as the first step does not halve it.
        room = half * 2 ** (halvings + _SLACK + 1)
        k1 = _K1 / jnp.where(width > 0, width, 1)
        f = self._problem.fun(b)
        return _State(a, b, f, f, half, room, k1, jnp.ones_like(x, bool))

    def step(self, at: Place, state: _State, steps: jax.Array) -> Step:
        is_start = steps < 0
        x = jnp.where(is_start, state.a, self._next(state))
        f = self._problem.fun(x)
        is_left = is_start | state.is_open & (jnp.sign(f) == jnp.sign(state.fa))
        is_right = state.is_open & ~is_left
        is_left |= is_right & (f == 0)
        new = state._replace(
            a=jnp.where(is_left, x, state.a),
            fa=jnp.where(is_left, f, state.fa),
            b=jnp.where(is_right, x, state.b),
            fb=jnp.where(is_right, f, state.fb),
            room=state.room / 2,
        )
        is_finite = jnp.isfinite(f) & jnp.isfinite(new.fb)
        place, state, code = self._end(new, is_finite)
        return place, state, jnp.where(is_start, 2, 1), code

    def _next(self, state: _State) -> jax.Array:
        """The next point of each interval: interpolate, truncate, project."""
        a, b, fa, fb = state.a, state.b, state.fa, state.fb
        middle, width = 0.5 * (a + b), b - a
        # Of values divided by the larger, whose difference cannot overflow.
        top = jnp.maximum(jnp.abs(fa), jnp.abs(fb))
        top = jnp.where(top > 0, top, 1)
        share = (fa / top) / jnp.where(fa == fb, 1, fa / top - fb / top)
        secant = a + share * width
        side = jnp.sign(middle - secant)
        move = state.k1 * width**2
        near = jnp.abs(middle - secant) <= move
        moved = jnp.where(near, middle, secant + side * move)
        most = jnp.maximum(state.room - 0.5 * width, 0)
        inner = jnp.where(jnp.abs(moved - middle) <= most, moved, middle - side * most)
        # Not so near to an end that the other one would never move.
        inner = jnp.clip(inner, a + state.half, b - state.half)
        return jnp.where(state.is_open, inner, a)

    def _end(self, state: _State, is_finite: Any) -> tuple[Place, _State, jax.Array]:
        """The better ends, the state with what is done, and the code."""
        is_lower = jnp.abs(state.fa) <= jnp.abs(state.fb)
        x = jnp.where(is_lower, state.a, state.b)
        r = jnp.where(is_lower, state.fa, state.fb)
        is_short = state.b - state.a <= 2 * state.half
        limit = self._problem.tol.gradient
        is_small = jnp.abs(r) <= (0 if limit is None else limit)
        has_none = jnp.sign(state.fa) * jnp.sign(state.fb) > 0
        is_open = state.is_open & ~is_short & ~is_small & ~has_none
        code = jnp.where(jnp.all(is_small), Code.RESIDUAL, Code.STEP)
        code = jnp.where(jnp.any(has_none), Code.NO_SIGN_CHANGE, code)
        code = jnp.where(jnp.any(is_open), Code.RUNNING, code)
        code = jnp.where(jnp.all(is_finite), code, Code.NOT_FINITE)
        return self._problem.place(x, r), state._replace(is_open=is_open), code
