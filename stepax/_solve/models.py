"""Linear models of the residuals, and their minimizers within a trust region.

A model is of the residuals with the rows weighted, J s + r; `scale`, the largest norms
of the columns so far, measures steps: the region is |scale s| <= radius.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._minimize.bundle import while_loop
from .dense import damped_step, triangle
from .loop import Place


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
    """J = Q A D, with A triangular and D the scale, and q = Q' r.

    norms: those of the columns of J.
    grad: J' r.
    """

    a: jax.Array
    q: jax.Array
    norms: jax.Array
    grad: jax.Array
    scale: jax.Array

    def propose(
        self, fun: Any, at: Place, radius: Any, damping: Any, box: Any
    ) -> Proposal:
        """The step; with a box (lower, upper) around x, parameters end at its sides."""
        del fun
        known = self.a, self.q, self.norms / self.scale, radius, damping
        if box is None:
            z, damping = damped_step(*known)
        else:
            sides = [(side - at.x) * self.scale for side in box]
            z, damping = _within(*known, sides, is_free(at.x, self.grad, box))
        change, s = self.a @ z, z / self.scale
        return _proposal(s, change, self.grad, self.scale, lambda _: damping)


def _proposal(s: Any, change: Any, grad: Any, scale: Any, damping: Any) -> Proposal:
    """A step from its J s; `damping` is a function of its length."""
    slope, square = jnp.sum(jnp.stack([grad * s, (scale * s) ** 2]), axis=1)
    length, fall = jnp.sqrt(square), -slope - 0.5 * jnp.sum(change**2)
    return Proposal(s, length, fall, slope, damping(length))


def dense(
    push: Callable, scale: jax.Array, w: Any, r: jax.Array, forward: bool
) -> Dense:
    """The model from the derivative along a vector, a linear function.

    scale: the largest so far; w: factors of the rows, or `None`.
    """
    size = len(scale)
    if forward:
        j = jax.vmap(push, out_axes=1)(jnp.eye(size, dtype=r.dtype))
    else:
        pull = jax.linear_transpose(push, scale)
        j = jax.vmap(lambda v: pull(v)[0])(jnp.eye(len(r), dtype=r.dtype))
    j = j if w is None else w[:, None] * j
    missing = max(0, size - len(r))
    upper, q = triangle(jnp.pad(j, ((0, missing), (0, 0))), jnp.pad(r, (0, missing)))
    # Householder's reflections are the same for columns of any norm.
    upper = jnp.triu(upper)
    top = jnp.max(jnp.abs(upper), axis=0)
    unit = jnp.where(top > 0, top, 1)[None]
    norms = top * jnp.sqrt(jnp.sum((upper / unit) ** 2, axis=0))
    scale = _wider(scale, norms)
    a = upper / scale[None]
    return Dense(a, q, norms, scale * jnp.sum(q[:, None] * a, axis=0), scale)


def _wider(scale: jax.Array, norms: jax.Array) -> jax.Array:
    """The largest norms so far, 1 for those that are 0."""
    largest = jnp.maximum(scale, norms)
    return jnp.where(largest > 0, largest, 1)


def is_free(x: jax.Array, grad: jax.Array, box: Any) -> jax.Array:
    """Whether the gradient does not press a parameter against a bound."""
    lower, upper = box
    return ~((x <= lower) & (grad > 0) | (x >= upper) & (grad < 0))


def _within(
    a: Any, q: Any, sizes: Any, radius: Any, guess: Any, sides: Any, free: Any
) -> Any:
    """The damped step with bounds: what passes one is held there, the rest again."""
    low, high = sides

    def attempt(state):
        held, free, _, _, count = state
        columns = a * free[None].astype(a.dtype)
        z, damping = damped_step(columns, q + a @ held, sizes, radius, guess)
        z = jnp.where(free, z, held)
        passes = free & ((z < low) | (z > high))
        held = jnp.where(passes, jnp.clip(z, low, high), held)
        z = jnp.clip(z, low, high)
        return held, free & ~passes, (z, damping), jnp.any(passes), count + 1

    zero = jnp.zeros_like(q)
    nothing = zero, jnp.zeros([], q.dtype)
    first = zero, free, nothing, jnp.ones([], bool), jnp.zeros([], jnp.int32)
    goes_on = lambda state: state[3] & (state[4] <= len(q))
    return while_loop(goes_on, attempt, first)[2]


# --- without a matrix ----------------------------------------------------------------

# Random vectors from which to estimate the norms of the columns, and the most products.
_PROBES, _PRODUCTS = 8, 200


class Products(NamedTuple):
    """J as products with vectors; `norms` are estimates, and `grad` is J' r."""

    norms: jax.Array
    grad: jax.Array
    scale: jax.Array

    def propose(
        self, fun: Any, at: Place, radius: Any, damping: Any, box: Any
    ) -> Proposal:
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
        is_outer = lambda length: (length >= 0.9 * radius).astype(x.dtype)
        return _proposal(s, push(s), self.grad, self.scale, is_outer)


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


def _conjugate(
    push: Callable, pull: Callable, r: jax.Array, radius: Any, precision: Any
) -> jax.Array:
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
