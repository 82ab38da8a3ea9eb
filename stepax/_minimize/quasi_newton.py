"""L-BFGS with its line search, for a few vectors in a compiled loop.

Byrd, Nocedal and Schnabel, 1994, Representations of quasi-Newton matrices and their use
in limited memory methods (DOI 10.1007/BF01582063), equation 3.1, with R the upper
triangle of the products s_i·y_j and D its diagonal:

    u = R^-1 S'g,   r = g - Y u,   v = R^-T (D u - scale Y'r),   H g = scale r + S v

These are the numbers of the two recursions of `scale_by_lbfgs`, without a loop.  R^-1
is stored: a new pair adds a column to it, and the oldest one is its first row and
column, which can be left out.  So its rows and columns may lie in a ring as the pairs.

Where there are few parameters more pairs are remembered than ten, as many as fit into
the memory that ten need of many parameters.  The first step is that to the minimum of
the parabola whose minimum is 0, and its length 1 at most.
"""

import functools as ft
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._engine.numerics import joined, root
from .._engine.precision import compute_dtype
from .._linesearch.line import Point, decrease_error, dot
from .._linesearch.zoom import Ends, Settings, narrow, nothing_known


# Pairs, and how many numbers each half of them may have before there are the fewest.
_FEWEST, _MOST, _ROOM = 10, 50, 2**17
_TRIALS = 20
_SETTINGS = Settings()


class Pairs(NamedTuple):
    """The last pairs of differences; m is how many fit.

    s, y: lists of arrays of shape (m, ...); the next pair is written `at`.
    inverse: R^-1, of shape (m, m); its row and column of a pair that does not count, or
        is forgotten, are 0.
    curvatures: s·y, of shape (m,).
    scale: s·y / y·y of the newest pair.
    products: S'g, of shape (m,).
    """

    s: list
    y: list
    at: jax.Array
    inverse: jax.Array
    curvatures: jax.Array
    scale: jax.Array
    products: jax.Array

    def forget(self, is_empty: jax.Array) -> "Pairs":
        """Without any pair, if `is_empty`; the scale stays."""
        clear = lambda x: jnp.where(is_empty, jnp.zeros_like(x), x)
        inverse, products = clear(self.inverse), clear(self.products)
        return self._replace(inverse=inverse, products=products)


class Found(NamedTuple):
    """Where a step leads.

    count: trials of the search.
    """

    xs: list
    value: jax.Array
    grads: list
    count: jax.Array


def begin(value: jax.Array, grads: list) -> Pairs:
    """No pair yet."""
    size = max(1, sum(g.size for g in grads))
    m = min(max(_ROOM // size, _FEWEST), _MOST)
    stack = lambda g: jnp.zeros((m, *g.shape), g.dtype)
    memory = lambda: list(map(stack, grads))
    square = dot(grads, grads).astype(value.dtype)
    square = jnp.where(square > 0, square, 1)
    zeros = ft.partial(jnp.zeros, dtype=value.dtype)
    height = jnp.where(value == 0, jnp.inf, 2 * jnp.abs(value))
    scale = jnp.minimum(root(square), height) / square
    at = jnp.zeros([], jnp.int32)
    return Pairs(memory(), memory(), at, zeros((m, m)), zeros(m), scale, zeros(m))


def step(
    pairs: Pairs, xs: list, value: jax.Array, grads: list, both: Callable
) -> tuple[Found, Pairs]:
    """One search, and the pairs with the new one.

    both: from a list of arrays to the value and its gradients.
    """
    d = _direction(pairs, grads)
    start = Point(jnp.zeros_like(value), value, _inner(d, grads, value), grads)
    move = lambda t: _map(
        lambda x, u: x + (t.astype(u.dtype) * u).astype(x.dtype), xs, d
    )

    def at(t):
        value, grads = both(move(t))
        return Point(t, value, _inner(d, grads, value), grads)

    low, count = _search(at, start)
    found = Found(move(low.step), low.value, low.grads, count)
    return found, _remember(pairs, xs, grads, found)


def _direction(pairs, grads):
    """-H g."""
    u = _times(pairs.inverse, pairs.products)
    wide = [g.astype(compute_dtype(g)) for g in grads]
    r = _map(jnp.subtract, wide, _combine(u, pairs.y))
    inner = pairs.curvatures * u - pairs.scale * _rows(pairs.y, r, u.dtype)
    v = _times(pairs.inverse.T, inner)
    add = lambda r, s: -(pairs.scale.astype(r.dtype) * r + s)
    return _map(add, r, _combine(v, pairs.s))


class _Search(NamedTuple):
    """A search under way; `grads` are those at the lower end."""

    count: jax.Array
    step: jax.Array
    ends: Ends
    is_done: jax.Array
    grads: list


def _search(at: Callable, start: Point) -> tuple[Point, jax.Array]:
    """The point that a search finds, or its start; the count of trials."""

    def advance(s):
        t = at(s.step)
        rise = _SETTINGS.approx_dec_rtol
        error = decrease_error(t, start, _SETTINGS.slope_rtol, approx_rtol=rise)
        is_flat = jnp.abs(t.slope) <= -_SETTINGS.curv_rtol * start.slope
        bare = t._replace(grads=())
        ends, is_low, step = narrow(s.ends, bare, error <= 0, _SETTINGS)
        is_enough = s.ends.is_short(_SETTINGS) & (ends.low.step > 0)
        grads = _map(ft.partial(jnp.where, is_low), t.grads, s.grads)
        return _Search(s.count + 1, step, ends, is_low & is_flat | is_enough, grads)

    one = jnp.ones_like(start.value)
    ends = nothing_known(start._replace(grads=()))
    is_over = ~(start.slope < 0)  # also of NaN
    first = _Search(jnp.zeros([], jnp.int32), one, ends, is_over, start.grads)
    goes_on = lambda s: ~s.is_done & (s.count < _TRIALS)
    end = jax.lax.while_loop(goes_on, advance, first)
    return end.ends.low._replace(grads=end.grads), end.count


def _remember(pairs: Pairs, xs: list, grads: list, found: Found) -> Pairs:
    """With the newest pair in the place of the oldest one, if it has curvature."""
    s, y = _map(jnp.subtract, found.xs, xs), _map(jnp.subtract, found.grads, grads)
    dtype, at = pairs.scale.dtype, pairs.at
    sy, yy, ss = (_inner(a, b, pairs.scale) for a, b in ((s, y), (y, y), (s, s)))
    limits = jnp.finfo(dtype)
    fits = (sy > limits.eps * root(ss) * root(yy)) & (sy > limits.tiny) & (yy < jnp.inf)
    weight = jnp.where(fits, 1 / jnp.where(fits, sy, 1), 0)
    write = lambda rows, x: jax.lax.dynamic_update_index_in_dim(rows, x, at, 0)
    rows = _map(write, pairs.s, s)
    products = _rows(rows, found.grads, dtype)
    is_new = jnp.arange(products.size, dtype=at.dtype) == at
    # S'y of the other pairs; the newest one is above none of them.
    change = jnp.where(is_new, 0, products - pairs.products)
    column = jnp.where(is_new, weight, -weight * _times(pairs.inverse, change))
    inverse = jnp.where(is_new[:, None], 0, pairs.inverse)
    return Pairs(
        rows,
        _map(write, pairs.y, y),
        jnp.where(at == products.size - 1, 0, at + 1),
        jnp.where(is_new[None], column[:, None], inverse),
        jnp.where(is_new, sy, pairs.curvatures),
        jnp.where(fits, sy / jnp.where(fits, yy, 1), pairs.scale),
        products,
    )


# --- products ------------------------------------------------------------------------


def _map(f, *lists):
    return [f(*xs) for xs in zip(*lists, strict=True)]


def _times(matrix, x):
    return jnp.matmul(matrix, x, precision=jax.lax.Precision.HIGHEST)


def _inner(xs, ys, like):
    return dot(xs, ys).astype(like.dtype)


def _rows(memory: list, xs: list, dtype: Any) -> jax.Array:
    """The products of each row with the arrays."""

    def one(rows, x):
        wide = compute_dtype(rows, x)
        rows, x = rows.astype(wide), x.astype(wide)
        if any(jax.typeof(x).sharding.spec):
            return jnp.sum(rows * x[None], tuple(range(1, rows.ndim)))
        axes = tuple(range(1, rows.ndim)), tuple(range(x.ndim))
        most = jax.lax.Precision.HIGHEST
        return jax.lax.dot_general(rows, x, (axes, ((), ())), precision=most)

    parts = [x.astype(dtype) for x in _map(one, memory, xs)]
    return joined(parts, jnp.add, jnp.sum)


def _combine(numbers: jax.Array, memory: list) -> list:
    """The sum of the rows, each times a number."""

    def one(rows):
        wide = compute_dtype(rows)
        return jnp.tensordot(
            numbers.astype(wide),
            rows.astype(wide),
            1,
            precision=jax.lax.Precision.HIGHEST,
        )

    return list(map(one, memory))
