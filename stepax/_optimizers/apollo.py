"""APOLLO: SGD with one learning rate per channel, from a low-rank Adam.

Zhu et al., 2024, APOLLO: SGD-like Memory, AdamW-level Performance (arXiv:2412.05270),
Algorithm 1; APOLLO-Mini is `rank=1, scale_type="tensor", scale=128.0`.

The projection is not stored: each step samples it again from the same key.  Matrices of
the same shape share it.  The state of a matrix of n rows and n columns in float32 takes
8 rank / n bytes for each element, where Adam's takes 8.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import bias_correction, ema, square
from .._engine.arrays.numerics import safe_increment, safe_sqrt
from .._transforms.decay import descend_and_decay
from .._transforms.noise import typed_key


PAPER = "arXiv:2412.05270"
_RANGES = {
    "norm_growth_limit": rx.POSITIVE_CAP,
    "rank": rx.AT_LEAST_1,
    "scale": rx.AT_LEAST_0,
    "update_proj_gap": rx.AT_LEAST_1,
}

ScaleType = Literal["channel", "tensor"]


class APOLLOState(NamedTuple):
    """count: steps taken.

    mu, nu: EMAs of the projected gradients and of their |.|², (rows, rank) or (rank,
        columns); for arrays that are not matrices, of g and |g|², shaped like them.
    norm: the norm of the last update of each array, a scalar.
    """

    count: jax.Array
    mu: rx.ArrayTree
    nu: rx.ArrayTree
    norm: rx.ArrayTree


@rx.public(paper=PAPER, ranges=_RANGES)
def scale_by_apollo(
    rank: int = 128,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-6,
    *,
    scale: rx.ArrayLike = 1.0,
    scale_type: ScaleType = "channel",
    scale_front: bool = False,
    norm_growth_limit: rx.ArrayLike = 1.01,
    update_proj_gap: rx.ArrayLike = 200,
    key: jax.Array | int | None = None,
    sampler: Callable[..., jax.Array] = jax.random.normal,
) -> rx.Rule:
    """Scale the channels of a matrix as Adam scales a projection of them.

        P = sampler(key, (rank, columns)) / sqrt(rank),   x = g Pᵀ
        d = mu / (sqrt(nu) + eps),   mu and nu of `scale_by_adam` for x
        u = ‖d‖ / (‖x‖ + 1e-8) g,   norms of each row
        u = u / max(1, ‖u‖ / (‖u_last‖ + 1e-8) / norm_growth_limit)
        the result is sqrt(scale) sqrt(1 - b2^t) / (1 - b1^t) u

    If there are fewer rows than columns, columns are channels, P has shape (rows, rank)
    and x = Pᵀ g.  Other arrays are left to Adam: the result is d for x = g.

    rank: number of directions of the projection, at least 1; it may exceed the sides.
    b1, b2: decay rates of the EMAs of the projection and of its |.|², in [0, 1].
    eps: added to the square root, above 0.
    scale, scale_front: the square of the factor, at least 0; whether it is applied
        before the limit.
    scale_type: "channel", or "tensor", with norms of the whole matrix.
    norm_growth_limit: the largest growth of ‖u‖ in a step, above 0.  After a gradient
        of zero ‖u‖ stays near 0, as in the authors' program.
    update_proj_gap: steps between projections, at least 1; mu and nu are kept.
    key, sampler: a random key or a seed, 0 if `None`; samples P by key, shape, dtype.

    In bfloat16 `nu` stalls: keep it in float32 with `with_state_dtypes`.

    Raises a `ValueError` for another `scale_type`.
    """
    rx.require_one_of("scale_type", scale_type, ("channel", "tensor"))
    key = 0 if key is None else key

    def prepare(scalars, stat, extra):
        (count,) = scalars
        t = safe_increment(count)
        factor = jnp.sqrt(bias_correction(b2, t)) / bias_correction(b1, t)
        return (count // update_proj_gap, count == 0, factor), (t,)

    def leaf(g, p, ctx, mu, nu, last):
        draw, is_first, factor = ctx
        low = _projected(g, rank, draw, key, sampler) if g.ndim == 2 else g
        mu = ema(mu, low, b1)
        nu = ema(nu, square(low), b2)
        d = mu / (safe_sqrt(nu) + eps)
        if g.ndim != 2:
            return factor * d, mu, nu, last
        axis = None if scale_type == "tensor" else int(_is_tall(g))
        before, after = (scale**0.5, 1) if scale_front else (1, scale**0.5)
        u = before * _norm(d, axis) / (_norm(low, axis) + 1e-8) * g
        size = _norm(u)
        excess = jnp.maximum(1, size / (last + 1e-8) / norm_growth_limit)
        excess = jnp.where(is_first, 1, excess)
        return after * factor * (u / excess), mu, nu, size / excess

    def mean(p):
        return rx.zeros_for(p, lambda p: _low(p, rank))

    slots = {
        "mu": rx.Slot(mean, alike=False),
        "nu": replace(rx.REDUCED, make=mean),
        "norm": rx.Slot(_zero, alike=False),
    }
    return rx.Rule(leaf, APOLLOState, slots, rx.COUNT, prepare)


def _is_tall(x):
    return x.shape[0] >= x.shape[1]


def _low(p, rank):
    """An array shaped and sharded like a projection of `p`; `p` if it has none."""
    if jnp.ndim(p) != 2:
        return p
    sums = jnp.sum(p, int(_is_tall(p)), keepdims=True)
    shape = (p.shape[0], rank) if _is_tall(p) else (rank, p.shape[1])
    return jnp.broadcast_to(sums, shape)


def _zero(p):
    """A real zero, in float32 or wider."""
    dtype = jnp.result_type(p)
    is_float = jnp.issubdtype(dtype, jnp.inexact)
    return jnp.zeros((), rx.scalar_dtype(p) if is_float else dtype)


def _norm(x, axis=None):
    return safe_sqrt(jnp.sum(square(x), axis, keepdims=axis is not None))


def _projected(g, rank, draw, key, sampler):
    """g Pᵀ for a tall matrix, P g for a wide one, with P of sample number `draw`."""
    now = jax.random.fold_in(typed_key(key), draw)
    shape = (rank, g.shape[1]) if _is_tall(g) else (g.shape[0], rank)
    x = sampler(now, shape, rx.real_dtype(g.dtype)) / rank**0.5
    return rx.replicated(g) @ x.T if _is_tall(g) else x.T @ rx.replicated(g)


@rx.public("optimizer", paper=PAPER, ranges=_RANGES)
def apollo(
    learning_rate: rx.ScalarOrSchedule = 1e-3,
    rank: int = 128,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-6,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    weight_decay_mask: rx.MaskOrFn = None,
    *,
    scale: rx.ArrayLike = 1.0,
    scale_type: ScaleType = "channel",
    scale_front: bool = False,
    norm_growth_limit: rx.ArrayLike = 1.01,
    update_proj_gap: rx.ArrayLike = 200,
    key: jax.Array | int | None = None,
    sampler: Callable[..., jax.Array] = jax.random.normal,
) -> rx.GradientTransformationExtraArgs:
    """APOLLO for matrices, Adam for other arrays, with weight decay after the step
    (Zhu et al., 2024, arXiv:2412.05270).

        p = (p - learning_rate u) (1 - learning_rate weight_decay)

    with u the output of `scale_by_apollo`.

    learning_rate, weight_decay: scalars or schedules.
    weight_decay_mask: parameters to decay; see `masked`.
    Other arguments: those of `scale_by_apollo`.
    """
    direction = rx.pass_on(scale_by_apollo, locals())
    return descend_and_decay(direction, learning_rate, weight_decay, weight_decay_mask)
