"""Linear models of the residuals, and their minimizers within a trust region.

A model is of the residuals with the rows weighted, J s + r; `scale`, the largest norms
of the columns so far, measures steps: the region is |scale s| <= radius.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

from .._minimize.bundle import while_loop


class Proposal(NamedTuple):
    """A step within the region.

    length: |scale s|.
    fall: the decrease of |J s + r|² / 2.
    slope: the slope of that at s = 0, along s.
    damping: the multiple of scale² in the damped system; 0 inside of the region.
    """

    s: jax.Array
    length: jax.Array
    fall: jax.Array
    slope: jax.Array
    damping: jax.Array


class Dense(NamedTuple):
    """J = Q A, with A triangular, and q = Q' r.

    rows: those of A', and q below them.
    columns: J' r, the norms of the columns of J, the scale, and its inverse.  As one
        array they take one function of the compiled program.
    """

    rows: jax.Array
    columns: jax.Array

    @property
    def grad(self) -> jax.Array:
        return self.columns[0]

    @property
    def norms(self) -> jax.Array:
        return self.columns[1]

    @property
    def scale(self) -> jax.Array:
        return self.columns[2]

    def propose(self, fun, at, radius, damping, box) -> Proposal:
        """The step; with a box (lower, upper) around x, parameters end at its sides."""
        del fun
        if box is None:
            end = damped_step(self, radius, damping)
            damping = end.root**2
            # J' (J s + r) + damping D² s = 0 for this s.
            fall = 0.5 * (damping * end.size**2 - end.slope)
            s = -end.z * self.columns[3]
            return Proposal(s, end.size, fall, end.slope, damping)
        s, damping = _within(self, radius, damping, at.x, box)
        change = jnp.sum(s[:, None] * self.rows[:-1], axis=0)
        return _proposal(s, change, self.grad, self.scale, damping)


def _proposal(s: Any, change: Any, grad: Any, scale: Any, damping: Any = 0) -> Proposal:
    """A step from its J s."""
    slope, square = jnp.sum(jnp.stack([grad * s, (scale * s) ** 2]), axis=1)
    length, fall = jnp.sqrt(square), -slope - 0.5 * jnp.sum(change**2)
    return Proposal(s, length, fall, slope, damping)


def no_model(x: jax.Array) -> Dense:
    """The model before the start, from which no step follows, with the least scale."""
    none = jnp.zeros((len(x) + 1, len(x)), x.dtype)
    return Dense(none, jnp.full((4, len(x)), -1, x.dtype))


def dense(push, scale, w, r, forward) -> Dense:
    """The model from the derivative along a vector, a linear function.

    scale: the largest so far; w: factors of the rows, or `None`.
    """
    size = len(scale)
    if forward:
        j = jax.vmap(push)(jnp.eye(size, dtype=r.dtype))
    else:
        pull = jax.linear_transpose(push, scale)
        j = jax.vmap(lambda v: pull(v)[0])(jnp.eye(len(r), dtype=r.dtype)).T
    rows = jnp.concatenate([j if w is None else w[None] * j, r[None]])
    rows = jnp.tril(triangle(jnp.pad(rows, ((0, 0), (0, max(0, size - len(r)))))))
    lower, q = rows[:-1], rows[-1]
    top = jnp.max(jnp.abs(lower), axis=1)
    short = lower / jnp.where(top > 0, top, 1)[:, None]
    square, slope = jnp.sum(jnp.stack([short**2, short * q[None]]), axis=2)
    norms = top * jnp.sqrt(square)
    scale = _wider(scale, norms)
    return Dense(rows, jnp.stack([top * slope, norms, scale, 1 / scale]))


def _wider(scale: jax.Array, norms: jax.Array) -> jax.Array:
    """The largest norms so far, 1 for those that are 0."""
    largest = jnp.maximum(scale, norms)
    return jnp.where(largest > 0, largest, 1)


def is_free(x: jax.Array, grad: jax.Array, box: Any) -> jax.Array:
    """Whether the gradient does not press a parameter against a bound."""
    lower, upper = box
    return ~((x <= lower) & (grad > 0) | (x >= upper) & (grad < 0))


def _within(model, radius, guess, x, box) -> tuple[jax.Array, jax.Array]:
    """The damped step with bounds: what passes one is held there, the rest again."""
    low, high = (side - x for side in box)
    a, q = model.rows[:-1], model.rows[-1]

    def attempt(state):
        held, free, _, _, count = state
        below = q + jnp.sum(held[:, None] * a, axis=0)
        rest = jnp.concatenate([a * free[:, None].astype(a.dtype), below[None]])
        step = damped_step(model._replace(rows=rest), radius, guess)
        s = jnp.where(free, -step.z * model.columns[3], held)
        passes = free & ((s < low) | (s > high))
        held = jnp.where(passes, jnp.clip(s, low, high), held)
        s = jnp.clip(s, low, high)
        return held, free & ~passes, (s, step.root**2), jnp.any(passes), count + 1

    zero, free = jnp.zeros_like(q), is_free(x, model.grad, box)
    nothing = zero, jnp.zeros([], q.dtype)
    first = zero, free, nothing, jnp.ones([], bool), jnp.zeros([], jnp.int32)
    return while_loop(lambda t: t[3] & (t[4] <= len(q)), attempt, first)[2]


# --- the damped step of a small problem, from a triangular factor --------------------
#
#     s = argmin |A s + q|² + d |D s|²,   d = 0, or such that |D s| is about `radius`
#
# As a function of d, 1 / |D s| is nearly a line, whose zero Newton's method finds in a
# few steps, each with a factorization of A below sqrt(d) D.  Householder's reflections
# are the same for columns of any norm.  d is never quite 0, so that a matrix of any
# rank has a step, of the least length.
#
# Moré, 1978, The Levenberg-Marquardt algorithm: implementation and theory (DOI
# 10.1007/BFb0067700), section 5.

# How far |D s| may be from the radius, and the most factorizations for it.
_NEAR, _TRIALS = 0.1, 10


def triangle(rows: jax.Array) -> jax.Array:
    """R' of A = Q R, below the diagonal, and the first n elements of Q' b below it.

    rows: A' and b below it, shape (n + 1, m) with m >= n, as LAPACK wants them.
    """
    return jnp.linalg.qr(rows.T, mode="raw")[0][:, : len(rows) - 1]


class _Trial(NamedTuple):
    """The step for a damping of `root` squared.

    z: -D s; size: its norm.
    slope: that of |A s + q|² / 2 along s, at 0.
    least: what the next damping is at least; before the first trial a guess for it.
    radius: a constant; of others XLA computes what follows from them alone in
        functions of their own.
    """

    z: jax.Array
    size: jax.Array
    slope: jax.Array
    root: jax.Array
    least: jax.Array
    radius: jax.Array
    count: jax.Array


def damped_step(model: Dense, radius: jax.Array, guess: jax.Array) -> _Trial:
    """The step for a model, without damping if it ends in the region."""
    n, zero = model.rows.shape[1], jnp.zeros_like(radius)
    # The least damping is relative to each column, since parameters with small ones may
    # move far.
    limits = jnp.finfo(model.rows.dtype)
    floor, least = n**0.5 * float(limits.eps), float(limits.tiny / limits.eps)

    def attempt(t):
        rows, (_, norms, scale, inverse) = model
        sides = jnp.maximum(jnp.maximum(t.root / floor * scale, norms), least) * floor
        # On top, where the right side is 0, so that no reflection cancels elements of
        # q: a diagonal matrix above a row of zeros.
        above = jnp.pad(sides[:, None], ((0, 0), (0, n))).reshape(n + 1, n)
        whole = triangle(jnp.concatenate([above, rows], axis=1))
        upper, b = (whole[:-1] * inverse[:, None]).T, whole[-1]
        z = solve_triangular(upper, b)
        square, slope = jnp.sum(jnp.stack([z, b]) ** 2, axis=1)
        size, radius = jnp.sqrt(square), t.radius
        bend = jnp.sum(solve_triangular(upper, z, trans=1) ** 2) / size
        # Newton's step for 1 / |z|; from below it never goes too far.  It is NaN where
        # z is 0, which ends the search.
        excess, damping = size - radius, t.root**2
        newton = damping + excess * size / (radius * bend)
        # Where it is not a number, a damping that suffices.
        most = n**0.5 * jnp.sqrt(slope) / radius
        newton = jnp.where(jnp.isfinite(newton), newton, most)
        is_first = t.count == 0
        is_done = (jnp.abs(excess) <= _NEAR * radius) | is_first & (excess < 0)
        low = jnp.where(is_first, 0, t.least)
        low = jnp.where(excess > 0, jnp.maximum(low, newton), low)
        damping = jnp.maximum(jnp.where(is_first, t.least, newton), low)
        root = jnp.where(is_done, t.root, jnp.sqrt(damping))
        count = jnp.where(is_done, _TRIALS, t.count + 1)
        return _Trial(z, size, -slope, root, low, radius, count)

    none, count = jnp.zeros(n, model.rows.dtype), jnp.zeros([], jnp.int32)
    first = _Trial(none, zero, zero, zero, guess, radius, count)
    return while_loop(lambda t: t.count < _TRIALS, attempt, first)


# --- without a matrix ----------------------------------------------------------------

# Random vectors from which to estimate the norms of the columns, and the most products.
_PROBES, _PRODUCTS = 8, 200


class Products(NamedTuple):
    """J as products with vectors; `norms` are estimates, and `grad` is J' r."""

    norms: jax.Array
    grad: jax.Array
    scale: jax.Array

    def propose(self, fun, at, radius, damping, box) -> Proposal:
        """The step by conjugate gradients, which end at the border of the region.

        fun: maps x to the derivative along a vector, and to the residuals, both with
            their rows weighted.
        """
        x = at.x
        push, r = fun(x)
        pull = jax.linear_transpose(push, x)
        free = jnp.ones_like(x, bool) if box is None else is_free(x, self.grad, box)
        mask = free.astype(x.dtype) / self.scale
        grad = mask * self.grad
        # Steps become more precise as J' r becomes small against J and r.
        cosine = jnp.sqrt(grad @ grad / jnp.maximum(r @ r, jnp.finfo(r.dtype).tiny))
        precision = jnp.minimum(0.1, jnp.sqrt(cosine)).astype(x.dtype)
        z = _conjugate(
            lambda v: push(mask * v), lambda v: mask * pull(v)[0], r, radius, precision
        )
        s = z * mask
        if box is not None:
            s = jnp.clip(s, box[0] - x, box[1] - x)
        found = _proposal(s, push(s), self.grad, self.scale)
        return found._replace(damping=(found.length >= 0.9 * radius).astype(x.dtype))


def products(push: Callable, scale: jax.Array, w: Any, r: jax.Array) -> Products:
    """The model, with norms from products of J' with random signs."""
    pull = jax.linear_transpose(push, scale)
    back = lambda v: pull(v if w is None else w * v)[0]
    signs = jax.random.rademacher(jax.random.key(0), (_PROBES, len(r)), r.dtype)
    norms = jnp.sqrt(jnp.mean(jax.vmap(back)(signs) ** 2, axis=0))
    return Products(norms, back(r), _wider(scale, norms))


class _Conjugate(NamedTuple):
    z: jax.Array
    residual: jax.Array  # J z + r
    direction: jax.Array
    square: jax.Array  # of the gradient
    count: jax.Array
    is_done: jax.Array


def _conjugate(push, pull, r, radius, precision) -> jax.Array:
    """Minimize |J z + r|² within |z| <= radius.

    Steihaug, 1983, The conjugate gradient method and trust regions in large scale
    optimization (DOI 10.1137/0720042), on the normal equations.
    """
    first = -pull(r)
    square = first @ first
    limit = precision**2 * square

    def attempt(t):
        change = push(t.direction)
        curvature = change @ change
        is_flat = ~(curvature > 0)
        step = t.square / jnp.where(is_flat, 1, curvature)
        # The positive root of |z + root d| = radius.
        dd, zd = t.direction @ t.direction, t.z @ t.direction
        room = jnp.maximum(radius**2 - t.z @ t.z, 0)
        root = room / (zd + jnp.sqrt(zd**2 + dd * room))
        root = jnp.where(dd * room > 0, root, 0)
        is_out = is_flat | (step >= root)
        step = jnp.where(is_out, root, step)
        z, residual = t.z + step * t.direction, t.residual + step * change
        grad = -pull(residual)
        new = grad @ grad
        direction = grad + new / t.square * t.direction
        is_done = is_out | (new <= limit)
        return _Conjugate(z, residual, direction, new, t.count + 1, is_done)

    zero, is_done = jnp.zeros([], jnp.int32), ~(square > 0)
    start = _Conjugate(jnp.zeros_like(first), r, first, square, zero, is_done)
    most = min(_PRODUCTS, 2 * len(first))
    return while_loop(lambda t: ~t.is_done & (t.count < most), attempt, start).z


# --- robust losses ------------------------------------------------------------------
#
# The value of a residual r is C² rho((r / C)²) / 2 for a scale C.  With w = sqrt(rho' +
# 2 z rho''), the rows w J and the residuals rho' r / w have the gradient of the value,
# and its curvature along r.
#
# Triggs et al., 2000, Bundle adjustment: a modern synthesis (DOI
# 10.1007/3-540-44480-7_21), section 4.3.

# The least curvature, relative to rho'; that of a robust loss may be 0 or negative.
_LEAST = 2.0**-10


def _soft_l1(z):
    root = jnp.sqrt(1 + z)
    # The difference without cancellation.
    return 2 * z / (root + 1), 1 / root, -0.5 / root**3


def _huber(z):
    far = z > 1
    root = jnp.sqrt(jnp.where(far, z, 1))
    value = jnp.where(far, 2 * root - 1, z)
    return value, 1 / root, jnp.where(far, -0.5 / root**3, 0)


def _cauchy(z):
    slope = 1 / (1 + z)
    return jnp.log1p(z), slope, -(slope**2)


# Each maps z to rho and its first two derivatives; "linear" is apart.
LOSSES: dict[str, Callable] = {
    "huber": _huber,
    "soft_l1": _soft_l1,
    "cauchy": _cauchy,
}


def value_of(loss: str, scale: Any, r: jax.Array) -> jax.Array:
    if loss == "linear":
        return jnp.sum(0.5 * (r * r))
    scale = scale.astype(r.dtype)
    return 0.5 * scale**2 * jnp.sum(LOSSES[loss]((r / scale) ** 2)[0])


def weighted(loss: str, scale: Any, r: jax.Array) -> tuple[jax.Array | None, jax.Array]:
    """The factors of the rows of the Jacobian, `None` for 1, and scaled residuals."""
    if loss == "linear":
        return None, r
    z = (r / scale.astype(r.dtype)) ** 2
    _, first, second = LOSSES[loss](z)
    w = jnp.sqrt(jnp.maximum(first + 2 * z * second, _LEAST * first))
    return w, first / w * r
