"""Cautious optimizers and Grams: only what agrees with the signs of the gradient.

Liang, Chen, Liu and Liu, 2024, Cautious Optimizers: Improving Training with One Line
of Code (arXiv:2411.16085), Algorithm 1, with the factors of the authors' code,
https://github.com/kyleliang919/C-Optim.

Cao, Li and Song, 2024, Grams: Gradient Descent with Adaptive Momentum Scaling
(arXiv:2412.17107), Algorithm 1: the size of Adam's update with the sign of the
gradient.  Difference from the authors' program: eps is added to the root of the
bias-corrected EMA, as in Adam; they add it before the correction.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import corrections, ema, square_like
from .._engine.arrays.numerics import agreement, safe_sqrt
from .._transforms.decay import descend
from .adam import ScaleByAdamState, scale_by_adam
from .lion import scale_by_lion


PAPER = "arXiv:2411.16085"


def _cautious(u, agrees, divisor: Callable, parts: rx.ArraySplit):
    """The elements of u that agree, scaled up the fewer they are."""
    kept = parts.sum(jnp.sum(agrees.astype(u.real.dtype)), u)
    # A product with `agrees` would be compiled to this, but without the NaN.
    u = jnp.where(agrees | jnp.isnan(u), u, 0)
    return u / divisor(kept, math.prod(parts.shape(u)))


def _made_cautious(
    tx: rx.TransformationLike, divisor: Callable, axis_name: rx.AxisName
) -> rx.Rule:
    rule, parts = cast(rx.Rule, rx.node_of(tx)), rx.ArraySplit(axis_name)
    direction = cast(Callable, rule.leaf)

    def leaf(g, p, ctx, *slots):
        u, *slots = direction(g, p, ctx, *slots)
        return _cautious(u, agreement(u, g) > 0, divisor, parts), *slots

    return replace(rule, leaf=leaf, elementwise=False, name="", origin=None)


def _divisor_of_adamw(kept: jax.Array, n: int) -> jax.Array:
    """The divisor of a step that keeps some of `n` elements."""
    return jnp.maximum(kept / max(n, 1), 1e-3)


@rx.public(paper=PAPER)
def scale_by_cautious_adam(
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-6,
    *,
    axis_name: rx.AxisName = None,
) -> rx.Rule:
    """Adam's direction where it agrees with the gradient, and 0 elsewhere.

        u = v k / max(mean(k), 1e-3),   v of `scale_by_adam`,   k = 1 where v g > 0

    b1, b2: decay rates of the EMAs of g and |g|², in [0, 1].
    eps: added to the square root, at least 0.
    axis_name: mesh axis of sharded arrays inside `shard_map`; see `clip_by_block_rms`.

    In bfloat16 `nu` stalls: keep it in float32 with `with_state_dtypes`.
    """
    return _made_cautious(scale_by_adam(b1, b2, eps), _divisor_of_adamw, axis_name)


@rx.traits("normalizes")
@rx.public(paper=PAPER)
def scale_by_cautious_lion(
    b1: rx.ArrayLike = 0.95, b2: rx.ArrayLike = 0.98, *, axis_name: rx.AxisName = None
) -> rx.Rule:
    """Lion's direction where it agrees with the gradient, and 0 elsewhere.

        u = v k n / (Σ k + 1),   v of `scale_by_lion`,   k = 1 where v g > 0

    n is the size of the array.

    b1: weight of the momentum in the update, in [0, 1].
    b2: decay rate of the momentum, in [0, 1].
    axis_name: mesh axis of sharded arrays inside `shard_map`; see `clip_by_block_rms`.
    """
    lion = scale_by_lion(b1, b2)
    return _made_cautious(lion, lambda kept, n: (kept + 1) / max(n, 1), axis_name)


@rx.public("optimizer", paper=PAPER)
def cautious_adamw(
    learning_rate: rx.ScalarOrSchedule,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-6,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    weight_decay_mask: rx.MaskOrFn = None,
    *,
    axis_name: rx.AxisName = None,
) -> rx.GradientTransformationExtraArgs:
    """AdamW that only moves where the mean gradient agrees with the gradient
    (Liang et al., 2024, arXiv:2411.16085).

        p = p - learning_rate (u + weight_decay p)
        with u the output of `scale_by_cautious_adam`

    learning_rate, weight_decay: scalars or schedules.
    weight_decay_mask: parameters to decay; see `masked`.
    Other arguments: those of `scale_by_cautious_adam`.
    """
    direction = scale_by_cautious_adam(b1, b2, eps, axis_name=axis_name)
    return descend(direction, learning_rate, weight_decay, weight_decay_mask)


@rx.public("optimizer", paper=PAPER)
def cautious_lion(
    learning_rate: rx.ScalarOrSchedule,
    b1: rx.ArrayLike = 0.95,
    b2: rx.ArrayLike = 0.98,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    weight_decay_mask: rx.MaskOrFn = None,
    *,
    axis_name: rx.AxisName = None,
) -> rx.GradientTransformationExtraArgs:
    """Lion that only moves where its sign agrees with the gradient
    (Liang et al., 2024, arXiv:2411.16085).

        p = p - learning_rate (u + weight_decay p)
        with u the output of `scale_by_cautious_lion`

    learning_rate, weight_decay: scalars or schedules.
    b1, b2: weight of the momentum in the update, and its decay rate, in [0, 1].
    weight_decay_mask: parameters to decay; see `masked`.
    axis_name: mesh axis over which arrays are sharded inside `shard_map`.
    """
    direction = scale_by_cautious_lion(b1, b2, axis_name=axis_name)
    return descend(direction, learning_rate, weight_decay, weight_decay_mask)


class _Seen(NamedTuple):
    """The gradients of this step, which are not kept."""

    gradients: rx.Updates


@rx.recorded
def _agreeing(sign: int, axis_name: rx.AxisName) -> rx.Rule:
    parts = rx.ArraySplit(axis_name)

    def leaf(u, p, ctx, g):
        return _cautious(u, sign * agreement(u, g) > 0, _divisor_of_adamw, parts), g

    return rx.Rule(leaf, _Seen, {"gradients": rx.Slot(kind="other")})


@rx.public("wrapper", paper=PAPER)
def cautious(
    inner: rx.TransformationLike,
    *,
    descends: bool = True,
    axis_name: rx.AxisName = None,
) -> rx.GradientTransformationExtraArgs:
    """Keep the updates of an optimizer where they oppose the gradient.

        u = v k / max(mean(k), 1e-3),   v = inner(g),   k = 1 where v g < 0, otherwise 0

    Means are over whole arrays.  The state is that of the inner transformation.  Weight
    decay of the inner optimizer is part of v; added outside, it is not masked.

    inner: an optimizer, with its learning rate.
    descends: whether v goes against the gradient; `False` for a direction without a
        learning rate, such as `scale_by_adam`: k is then 1 where v g > 0.
    axis_name: mesh axis of sharded arrays inside `shard_map`; see `clip_by_block_rms`.
    """
    base = rx.with_keywords(inner, "`inner` of `cautious`")
    agreeing = _agreeing(-1 if descends else 1, axis_name)

    def update(updates, state, params=None, **extra_args):
        u, new = base.update(updates, state, params, **extra_args)
        seen = _Seen(jax.tree.map(rx.as_array, updates))
        return agreeing.update(u, seen)[0], rx.keep_dtypes(new, state)

    return rx.transformation(base.init, update, inner={"": base})


@rx.public(paper="arXiv:2412.17107")
def scale_by_grams(
    b1: rx.ArrayLike = 0.9, b2: rx.ArrayLike = 0.999, eps: rx.ArrayLike = 1e-6
) -> rx.Rule:
    """Give the modulus of Adam's update the sign, or the phase, of the gradient.

        u = sign(g) |mu / (1 - b1^t)| / (sqrt(nu / (1 - b2^t)) + eps)

    with mu and nu of `scale_by_adam`.  It is 0 where g is 0.

    b1, b2: decay rates of the EMAs of g and |g|², in [0, 1].
    eps: added to the square root, above 0.

    In bfloat16 `nu` stalls: keep it in float32 with `with_state_dtypes`.
    """

    def leaf(g, p, ctx, mu, nu):
        c1, c2, _ = ctx
        mu = ema(mu, g, b1)
        nu = ema(nu, square_like(g, nu), b2)
        u = jnp.sign(g) * jnp.abs(mu / c1) / (safe_sqrt(nu / c2) + eps)
        return u, mu, nu

    prepare = rx.from_step(corrections(b1, b2, False))
    slots = {"mu": rx.Slot(), "nu": rx.MEAN_SQUARE}
    return rx.Rule(leaf, ScaleByAdamState, slots, rx.COUNT, prepare, elementwise=True)


@rx.public("optimizer", paper="arXiv:2412.17107")
def grams(
    learning_rate: rx.ScalarOrSchedule = 1e-3,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-6,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """Grams, with decoupled weight decay (Cao et al., 2024, arXiv:2412.17107).

        p = p - learning_rate (u + weight_decay p)
        with u the output of `scale_by_grams`

    learning_rate, weight_decay: scalars or schedules.
    weight_decay_mask: parameters to decay; see `masked`.
    Other arguments: those of `scale_by_grams`.
    """
    direction = scale_by_grams(b1, b2, eps)
    return descend(direction, learning_rate, weight_decay, weight_decay_mask)
