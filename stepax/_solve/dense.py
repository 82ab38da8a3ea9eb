"""The damped step of a small linear least-squares problem, from a triangular factor.

    z = argmin |A z + q|² + d |z|²   with d = 0, or so large that |z| is about `radius`

As a function of d, 1 / |z| is nearly a line, whose zero Newton's method finds in a few
steps, each with a factorization of A below sqrt(d) times the identity.  d is never
quite 0, so that a matrix of any rank has a step, of the least length.

Moré, 1978, The Levenberg-Marquardt algorithm: implementation and theory (DOI
10.1007/BFb0067700), section 5.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

from .._minimize.bundle import while_loop


# How far |z| may be from the radius, and the most factorizations for it.
_NEAR, _TRIALS = 0.1, 10


def triangle(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """R of a = Q R, above the diagonal, and the first n elements of Q' b.

    a: shape (m, n), with m >= n.
    """
    n = a.shape[1]
    whole = jnp.linalg.qr(jnp.concatenate([a, b[:, None]], axis=1), mode="raw")[0].T
    return whole[:n, :n], whole[:n, n]


class _Trial(NamedTuple):
    """The step for a damping of `root` squared, which is at least `least`."""

    z: jax.Array
    root: jax.Array
    least: jax.Array
    count: jax.Array
    is_done: jax.Array


def damped_step(
    a: jax.Array, q: jax.Array, sizes: Any, radius: jax.Array, guess: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """z and the damping d; the latter is 0 if |z| is within the radius without it.

    a: upper triangular or square, shape (n, n), with columns of norm 1 or less.
    sizes: norms of the columns, or 0 where they do not matter, shape (n,).
    guess: a damping to try if one is needed.
    """
    n, zero, eps = len(q), jnp.zeros_like(q[0]), float(jnp.finfo(q.dtype).eps)
    # Relative to each column, since parameters with small ones may move far.
    floor = n**0.5 * eps * jnp.where(sizes > 0, sizes, 1)
    # A damping that suffices.
    most = n**0.5 * jnp.sqrt(jnp.sum(q * q)) / radius
    right = jnp.concatenate([jnp.zeros_like(q), -q])

    def attempt(t):
        # On top, where the right side is 0, so that no reflection cancels elements of
        # q.
        above = jnp.diag(jnp.maximum(t.root, floor))
        r, b = triangle(jnp.concatenate([above, a]), right)
        z = solve_triangular(r, b)
        size = jnp.sqrt(jnp.sum(z * z))
        slope = jnp.sum(solve_triangular(r, z, trans=1) ** 2) / size
        # Newton's step for 1 / |z|; from below it never goes too far.  It is NaN where
        # z is 0, which ends the search.
        excess, damping = size - radius, t.root**2
        newton = damping + excess * size / (radius * slope)
        newton = jnp.where(jnp.isfinite(newton), newton, most)
        is_first = t.count == 0
        is_near = jnp.abs(excess) <= _NEAR * radius
        is_done = is_near | is_first & (excess < 0)
        least = jnp.where(excess > 0, jnp.maximum(t.least, newton), t.least)
        damping = jnp.maximum(jnp.where(is_first, guess, newton), least)
        root = jnp.where(is_done, t.root, jnp.sqrt(damping))
        return _Trial(z, root, least, t.count + 1, is_done)

    is_done = jnp.zeros([], bool)
    first = _Trial(jnp.zeros_like(q), zero, zero, jnp.zeros([], jnp.int32), is_done)
    goes_on = lambda t: ~t.is_done & (t.count < _TRIALS)
    end = while_loop(goes_on, attempt, first)
    return end.z, end.root**2
