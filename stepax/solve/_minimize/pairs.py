"""The inverse Hessian of L-BFGS in its compact form, for a few vectors.

Byrd, Nocedal and Schnabel, 1994, Representations of quasi-Newton matrices and their use
in limited memory methods (DOI 10.1007/BF01582063), equation 3.1, with R the upper
triangle of the products s_i·y_j and D its diagonal:

    u = R^-1 S'g,   r = g - Y u,   v = R^-T (D u - scale Y'r),   H g = scale r + S v

The result equals that of the two-loop recursion of `scale_by_lbfgs`, without a loop.
R^-1 is stored: a new pair adds a column, and the oldest pair is its first row and
column, which can be dropped.  So its rows and columns form a ring buffer, like the
pairs.

For few parameters more than ten pairs are stored, as many as fit into the memory that
ten pairs of many parameters take.
"""

import functools as ft
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ..._engine.arrays.numerics import reduce_scalars, safe_sqrt
from ..._engine.arrays.precision import compute_dtype
from ..._linesearch.line import dot, hold


# Numbers of pairs, and the number of elements of all s (or y) from which the fewest
# pairs are stored.
_FEWEST, _MOST, _ROOM = 10, 50, 2**17


class Pairs(NamedTuple):
    """The last pairs of differences; m is their maximum number.

    s, y: lists of arrays of shape (m, ...); the next pair is written `at`.
    inverse: R^-1, of shape (m, m); rows and columns of ignored or dropped pairs are 0.
    curvatures: s·y, of shape (m,).
    scale: s·y / y·y of the newest pair.
    products: S'g, of shape (m,).
    guess: the first step size to try in the next search.
    flattest: the largest s·s / s·y of all pairs so far.
    """

    s: list
    y: list
    at: jax.Array
    inverse: jax.Array
    curvatures: jax.Array
    scale: jax.Array
    products: jax.Array
    guess: jax.Array
    flattest: jax.Array

    def forget(self, is_empty: jax.Array, scale: jax.Array) -> "Pairs":
        """Drop all pairs and use `scale` from now on, if `is_empty`."""
        clear = lambda x: jnp.where(is_empty, jnp.zeros_like(x), x)
        inverse, products = clear(self.inverse), clear(self.products)
        scale = jnp.where(is_empty, scale, self.scale)
        return self._replace(inverse=inverse, products=products, scale=scale)

    def direction(self, grads: list) -> list:
        """-H g."""
        u = times(self.inverse, self.products)
        wide = [g.astype(compute_dtype(g)) for g in grads]
        r = each(jnp.subtract, wide, _combine(u, self.y))
        inner = self.curvatures * u - self.scale * _rows(self.y, r, u.dtype)
        v = times(self.inverse.T, inner)
        add = lambda r, s: -(self.scale.astype(r.dtype) * r + s)
        return each(add, r, _combine(v, self.s))

    def remember(self, s: list, y: list, grads: list, step: ArrayLike = 1) -> "Pairs":
        """Replace the oldest, if this has curvature; s is `step` times a direction."""
        at, (sy, yy, ss, fits) = self.at, curvature(s, y, self.scale.dtype)
        weight = jnp.where(fits, 1 / jnp.where(fits, sy, 1), 0)
        is_kept = hold(fits)

        def write(rows, x):  # a NaN in an ignored pair would give NaN * 0
            x = jnp.where(is_kept, x, jnp.zeros_like(x))
            return jax.lax.dynamic_update_index_in_dim(rows, x, at, 0)

        rows = each(write, self.s, s)
        products = _rows(rows, grads, sy.dtype)
        is_new = jnp.arange(products.size, dtype=at.dtype) == at
        # S'y of the other pairs; R is triangular, so that the newest row has no others.
        change = jnp.where(is_new, 0, products - self.products)
        column = jnp.where(is_new, weight, -weight * times(self.inverse, change))
        inverse = jnp.where(is_new[:, None], 0, self.inverse)
        return Pairs(
            rows,
            each(write, self.y, y),
            jnp.where(at == products.size - 1, 0, at + 1),
            jnp.where(is_new[None], column[:, None], inverse),
            jnp.where(is_new, jnp.where(fits, sy, 0), self.curvatures),
            jnp.where(fits, sy / yy, self.scale),
            products,
            next_guess(fits, step, self.guess),
            flatter(self.flattest, ss, sy, fits),
        )


def no_pairs(grads: list, scale: jax.Array) -> Pairs:
    size = max(1, sum(g.size for g in grads))
    m = min(max(_ROOM // size, _FEWEST), _MOST)
    # Sharded, too.
    s, y = ([jnp.broadcast_to(jnp.zeros_like(g), (m, *g.shape)) for g in grads],) * 2
    zeros = ft.partial(jnp.zeros, dtype=scale.dtype)
    at = jnp.zeros([], jnp.int32)
    square, row, one = zeros((m, m)), zeros(m), jnp.ones_like(scale)
    flattest = jnp.zeros_like(scale)
    return Pairs(s, y, at, square, row, scale, row, one, flattest)


def next_guess(fits: jax.Array, step: ArrayLike, last: jax.Array) -> jax.Array:
    """1, or the last step size if the search went far and saw no curvature."""
    return jnp.where(fits, 1, jnp.maximum(step, 1)).astype(last.dtype)


def flatter(last: jax.Array, ss: jax.Array, sy: jax.Array, fits: jax.Array):
    """The largest s·s / s·y, including that of a pair with curvature."""
    return jnp.where(fits, jnp.maximum(last, ss / jnp.where(fits, sy, 1)), last)


def curvature(s: list, y: list, dtype: Any) -> tuple[jax.Array, ...]:
    """s·y, y·y, s·s; whether s·y is finite and positive beyond rounding error."""
    sy, yy, ss = (dot(a, b).astype(dtype) for a, b in ((s, y), (y, y), (s, s)))
    limits = jnp.finfo(dtype)
    is_curved = (sy > limits.eps * safe_sqrt(ss) * safe_sqrt(yy)) | (ss == jnp.inf)
    fits = is_curved & (sy > limits.tiny)
    fits &= (yy < jnp.inf) & (yy > limits.tiny)
    return sy, jnp.where(fits, yy, 1), ss, fits


def each(f, *lists):
    return [f(*xs) for xs in zip(*lists, strict=True)]


def times(matrix: jax.Array, x: jax.Array) -> jax.Array:
    """A matrix product in full precision on accelerators."""
    return jnp.matmul(matrix, x, precision=jax.lax.Precision.HIGHEST)


def _rows(memory: list, xs: list, dtype: Any) -> jax.Array:
    """The inner product of each row with the arrays."""

    def one(rows, x):
        wide = compute_dtype(rows, x)
        rows, x = rows.astype(wide), x.astype(wide)
        if any(jax.typeof(x).sharding.spec):
            return jnp.sum(rows * x[None], tuple(range(1, rows.ndim)))
        axes = tuple(range(1, rows.ndim)), tuple(range(x.ndim))
        most = jax.lax.Precision.HIGHEST
        return jax.lax.dot_general(rows, x, (axes, ((), ())), precision=most)

    parts = [x.astype(dtype) for x in each(one, memory, xs)]
    return reduce_scalars(parts, jnp.add, jnp.sum)


def _combine(numbers: jax.Array, memory: list) -> list:
    """A linear combination of the rows."""

    def one(rows):
        wide = compute_dtype(rows)
        return jnp.tensordot(
            numbers.astype(wide),
            rows.astype(wide),
            1,
            precision=jax.lax.Precision.HIGHEST,
        )

    return list(map(one, memory))
