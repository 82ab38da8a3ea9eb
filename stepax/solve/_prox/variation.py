"""Total variation along an axis, exactly.

Johnson, 2013, A Dynamic Programming Algorithm for the Fused Lasso and L0-Segmentation
(DOI 10.1080/10618600.2012.681238).  From the first element to the last one, keep the
derivative of the least cost so far as a function of the element b:

    h_1(b) = b - x_1,   h_k+1(b) = min(max(h_k(b), -t), t) + b - x_k+1

It is piecewise linear and increasing.  Its knots are in an array, of which each step
drops some at both ends and adds one at each: 2n operations in all.  XLA copies the
array in each step, which takes longer from about 10,000 elements on.  Then

    z_n = the root of h_n,   z_k = min(max(z_k+1, low_k), high_k)

where h_k is -t at `low_k` and t at `high_k`.  Within the pieces of the result, on which
it is constant, it is the mean of x plus t times the jumps' signs at both ends over the
length, from which its derivatives follow.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


def cost(x, axes, w):
    """w Σ |x_i+1 - x_i|, along the last axis."""
    return jnp.sum(w * jnp.abs(jnp.diff(x)).sum(-1, keepdims=True))


def point(x, s, axes, w):
    """The minimizer, for each row of the last axis."""
    if x.shape[-1] < 2 or not x.size:
        return x
    if jnp.iscomplexobj(x):
        raise ValueError("`total_variation` needs real numbers, but a leaf is complex")
    t = jnp.broadcast_to(s * w, (*x.shape[:-1], 1))
    rows = jax.vmap(_row)(x.reshape(-1, x.shape[-1]), t.reshape(-1))
    return rows.reshape(x.shape)


def _row(x, t):
    z = jax.lax.stop_gradient(x)
    z = _pieces_of(z, jax.lax.stop_gradient(t))
    jumps = jnp.sign(jnp.diff(z))
    piece = jnp.append(0, jnp.cumsum((jumps != 0).astype(jnp.int32)))
    total = lambda v: jax.ops.segment_sum(v, piece, len(x))[piece]
    # At its right end a piece is pulled towards the next one, at its left end as well.
    pull = t * (jnp.append(jumps, 0) - jnp.append(jnp.zeros(1, x.dtype), jumps))
    # The mean of differences, so that large elements do not cancel.
    return z + total(x - z + pull) / total(jnp.ones_like(x))


class _Derivative(NamedTuple):
    """h as its lines at both ends, and the changes of the line at the knots between.

    left, right: slope and intercept of the lines, of shape (2,).
    knots: positions; changes: of slope and intercept from left to right.
    first, last: the indices of the knots in use.
    """

    left: jax.Array
    right: jax.Array
    knots: jax.Array
    changes: jax.Array
    first: jax.Array
    last: jax.Array


def _pieces_of(x, t):
    """The minimizer, without derivatives."""
    n, start = len(x), _line(x[0], 0)
    slope, middle = jnp.array([0, 1], x.dtype), jnp.asarray(n, jnp.int32)
    empty = jnp.zeros(2 * n, x.dtype), jnp.zeros((2 * n, 2), x.dtype)

    def step(h, y):
        low, first, left = _find(h, -t)
        high, last, right = _find(h._replace(first=first), t, -1)
        first, last = first - 1, last + 1
        knots = h.knots.at[first].set(low).at[last].set(high)
        changes = h.changes.at[first].set(left + slope * t)
        changes = changes.at[last].set(slope * t - right)
        ends = _line(y, -t), _line(y, t)
        return _Derivative(*ends, knots, changes, first, last), (low, high)

    h = _Derivative(start, start, *empty, middle, middle - 1)
    h, limits = jax.lax.scan(step, h, x[1:])
    end = _find(h, jnp.zeros_like(t))[0]

    def back(z, limits):
        z = jnp.clip(z, *limits)
        return z, z

    _, rest = jax.lax.scan(back, end, limits, reverse=True)
    return jnp.append(rest, end)


def _line(y, shift):
    """b - y + shift."""
    return jnp.stack([jnp.ones_like(y), shift - y])


def _find(h, level, sign=1):
    """Where h has a value: the place, the knot beyond, and the line.

    sign: 1 to search from the left, -1 from the right.
    """

    def is_before(carry):
        i, line = carry
        value = line[0] * h.knots[i] + line[1]
        return (h.first <= i) & (i <= h.last) & (sign * value <= sign * level)

    def move(carry):
        return carry[0] + sign, carry[1] + sign * h.changes[carry[0]]

    start = (h.first, h.left) if sign == 1 else (h.last, h.right)
    i, line = jax.lax.while_loop(is_before, move, start)
    return (level - line[1]) / line[0], i, line
