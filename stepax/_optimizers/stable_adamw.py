"""StableAdamW and Adam-atan2: Adam with bounded updates.

Wortsman et al., 2023, Stable and Low-Precision Training for Large-Scale Vision-Language
Models (arXiv:2304.13013), Algorithm 2: AdamW with the update clipping of Adafactor, a
lower learning rate where gradients outgrow their root mean square.

Everett et al., 2024, Scaling Exponents Across Parameterizations and Optimizers
(arXiv:2407.05872), section 4.3: the angle between Adam's two means in place of their
quotient, which is bounded and does not depend on the scale of the gradients, so that
there is no epsilon.  Difference from the paper: weight decay is multiplied by the
learning rate.
"""

from typing import Any

import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import corrections, ema, square, square_like
from .._engine.arrays.numerics import quotient, safe_increment, safe_sqrt
from .._transforms.decay import descend
from .._transforms.scale import scale_by_learning_rate, value_at
from .._wrappers.chain import chain
from .._wrappers.partition import partition, split
from .adam import ScaleByAdamState


PAPER = "arXiv:2304.13013"


@rx.public(paper=PAPER)
def scale_by_stable_adam(
    b1: rx.ArrayLike = 0.9, b2: rx.ArrayLike = 0.99, eps: rx.ArrayLike = 1e-6
) -> rx.GradientTransformationExtraArgs:
    """Divide Adam's update by how much the gradient outgrows its mean square.

        rms = sqrt(mean(|g|² / max(nu / (1 - b2^t), eps²)))   over an array
        u = mu / (1 - b1^t) / (sqrt(nu / (1 - b2^t)) + eps) / max(1, rms)

    with mu and nu of `scale_by_adam`.

    b1, b2: decay rates of the EMAs of g and |g|², in [0, 1].
    eps: added to the square root in u, and its lower bound in rms; above 0.

    In bfloat16 `nu` stalls: keep it in float32 with `with_state_dtypes`.
    """
    return _stable(b1, b2, eps, None)


@rx.recorded
def _stable(
    b1: rx.ArrayLike,
    b2: rx.ArrayLike,
    eps: rx.ArrayLike,
    weight_decay: Any,
) -> rx.Rule:
    """`scale_by_stable_adam` for decaying arrays: weight decay is divided, too."""
    bias = corrections(b1, b2, False)

    def prepare(scalars, stat, extra):
        (count,) = scalars
        t = safe_increment(count)
        return (*bias(t)[:2], value_at(weight_decay, count)), (t,)

    def leaf(g, p, ctx, mu, nu):
        c1, c2, decay = ctx
        mu = ema(mu, g, b1)
        nu = ema(nu, square(g), b2)
        ratios = quotient(square(g), jnp.maximum(nu / c2, eps**2))
        divisor = jnp.maximum(1, safe_sqrt(jnp.mean(ratios)))
        u = mu / c1 / (safe_sqrt(nu / c2) + eps)
        return (u if decay is None else u + decay * p) / divisor, mu, nu

    slots = {"mu": rx.Slot(), "nu": rx.REAL}
    decays = weight_decay is not None
    return rx.Rule(
        leaf, ScaleByAdamState, slots, rx.COUNT, prepare, needs_params=decays
    )


@rx.public("optimizer", paper=PAPER)
def stable_adamw(
    learning_rate: rx.ScalarOrSchedule,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.99,
    eps: rx.ArrayLike = 1e-6,
    weight_decay: rx.ScalarOrSchedule = 0.01,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """StableAdamW (Wortsman et al., 2023, arXiv:2304.13013): AdamW with a learning rate
    that is clipped for each array.

        p = p - learning_rate (u + weight_decay p / max(1, rms))

    with u and rms of `scale_by_stable_adam`.

    learning_rate, weight_decay: scalars or schedules.
    b1, b2: decay rates of the EMAs of g and |g|², in [0, 1].
    eps: added to the square root, and its lower bound in rms; above 0.
    weight_decay_mask: parameters to decay; see `masked`.

    In bfloat16 `nu` stalls: keep it in float32 with `with_state_dtypes`.
    """
    direction = _stable(b1, b2, eps, weight_decay)
    if weight_decay_mask is not None:
        rules = {"decays": direction, "stays": _stable(b1, b2, eps, None)}
        labels = split(weight_decay_mask, "decays", "stays", "weight_decay_mask")
        direction = partition(rules, labels)
    return chain(direction, scale_by_learning_rate(learning_rate))


ATAN2 = "arXiv:2407.05872"
_RANGES = {"a": rx.AT_LEAST_0, "b": rx.AT_LEAST_0}


@rx.public(paper=ATAN2, ranges=_RANGES)
def scale_by_adam_atan2(
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.99,
    *,
    a: rx.ArrayLike = 1.27,
    b: rx.ArrayLike = 1.0,
) -> rx.Rule:
    """Take the angle between the EMA of g and the root of the EMA of |g|².

        mu = b1 mu + (1 - b1) g,   nu = b2 nu + (1 - b2) |g|²
        u = a atan2(mu / (1 - b1^t), b sqrt(nu / (1 - b2^t))),   atan2(0, 0) = 0

    For complex means the angle is that of the modulus, and the phase is kept.

    b1, b2: decay rates of the EMAs of g and |g|², in [0, 1].
    a: factor of the angle, at least 0; 1.27 makes |u| 1 for constant gradients.
    b: factor of the root, at least 0; |u| is linear up to about b times the root.

    In bfloat16 `nu` stalls: keep it in float32 with `with_state_dtypes`.
    """

    def leaf(g, p, ctx, mu, nu):
        c1, c2, _ = ctx
        mu = ema(mu, g, b1)
        nu = ema(nu, square_like(g, nu), b2)
        return a * _angle(mu / c1, b * safe_sqrt(nu / c2)), mu, nu

    prepare = rx.from_step(corrections(b1, b2, False))
    slots = {"mu": rx.Slot(), "nu": rx.MEAN_SQUARE}
    return rx.Rule(leaf, ScaleByAdamState, slots, rx.COUNT, prepare, elementwise=True)


def _angle(m, root):
    """atan2(m, root), with derivative 0 at the origin."""
    if jnp.iscomplexobj(m):
        return jnp.sign(m) * _angle(safe_sqrt(square(m)), root)
    is_zero = (m == 0) & (root == 0)
    return jnp.arctan2(jnp.where(is_zero, 0, m), jnp.where(is_zero, 1, root))


@rx.public("optimizer", paper=ATAN2, ranges=_RANGES)
def adam_atan2(
    learning_rate: rx.ScalarOrSchedule = 1e-4,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.99,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    weight_decay_mask: rx.MaskOrFn = None,
    *,
    a: rx.ArrayLike = 1.27,
    b: rx.ArrayLike = 1.0,
) -> rx.GradientTransformationExtraArgs:
    """Adam-atan2, with decoupled weight decay (Everett et al., 2024, arXiv:2407.05872).

        p = p - learning_rate (u + weight_decay p)
        with u the output of `scale_by_adam_atan2`

    learning_rate, weight_decay: scalars or schedules.
    weight_decay_mask: parameters to decay; see `masked`.
    Other arguments: those of `scale_by_adam_atan2`.
    """
    direction = scale_by_adam_atan2(b1, b2, a=a, b=b)
    return descend(direction, learning_rate, weight_decay, weight_decay_mask)
