"""The inverse Hessian of BFGS as a dense matrix, for few parameters.

Nocedal and Wright, 2006, Numerical Optimization, 2nd edition, equation 6.17; Al-Baali,
1998, Numerical experience with a class of self-scaling quasi-Newton algorithms (DOI
10.1023/A:1022608410710), for the scaling, without which directions with less curvature
than the first pair are learned slowly:

    H = max(1, s·y / y·H y) H;   for the first pair, s·y / y·y times the identity
    H = V' H V + s s' / s·y,   V = I - y s' / s·y

It takes less memory than the pairs, includes all of them, and its product is one
operation.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .pairs import curvature, flatter, next_guess, times


# The largest number of parameters for which to use a matrix.
MOST = 64


class Matrix(NamedTuple):
    """The inverse Hessian for one vector.

    h: the matrix, of shape (n, n).
    scale: s·y / y·y of the newest pair.
    is_first: whether there has been no pair yet.
    guess: the first step size to try in the next search.
    flattest: the largest s·s / s·y of all pairs so far.
    """

    h: jax.Array
    scale: jax.Array
    is_first: jax.Array
    guess: jax.Array
    flattest: jax.Array

    def forget(self, is_empty: jax.Array) -> "Matrix":
        """Drop all pairs if `is_empty`; the scale is kept."""
        plain = self.scale * jnp.eye(len(self.h), dtype=self.h.dtype)
        h = jnp.where(is_empty, plain, self.h)
        return self._replace(h=h, is_first=self.is_first | is_empty)

    def direction(self, grads: list) -> list:
        """-H g."""
        return [-times(self.h, grads[0].astype(self.h.dtype))]

    def remember(self, s: list, y: list, grads: list, step: ArrayLike = 1) -> "Matrix":
        """Update with a pair if it has curvature; s is `step` times the direction."""
        sy, yy, ss, fits = curvature(s, y, self.scale.dtype)
        t, change = s[0].astype(sy.dtype), y[0].astype(sy.dtype)
        hy = times(self.h, change)
        yhy = times(change, hy)
        ratio = sy / jnp.where(fits & (yhy > 0), yhy, sy)
        factor = jnp.where(self.is_first, ratio, jnp.maximum(ratio, 1))
        flattest = flatter(self.flattest, ss, sy, fits)
        sy = jnp.where(fits, sy, 1)
        t, hy = t / sy, factor * hy
        outer = lambda a, b: a[:, None] * b[None]
        rank_two = (sy + factor * yhy) * outer(t, t) - outer(hy, t) - outer(t, hy)
        return Matrix(
            jnp.where(fits, factor * self.h + rank_two, self.h),
            jnp.where(fits, sy / yy, self.scale),
            self.is_first & ~fits,
            next_guess(fits, step, self.guess),
            flattest,
        )


def no_matrix(size: int, scale: jax.Array) -> Matrix:
    """The matrix before any pair."""
    plain = scale * jnp.eye(size, dtype=scale.dtype)
    one, zero = jnp.ones_like(scale), jnp.zeros_like(scale)
    return Matrix(plain, scale, jnp.ones([], bool), one, zero)
