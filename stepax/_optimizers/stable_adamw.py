"""StableAdamW: AdamW with a lower learning rate where gradients outgrow their RMS.

Wortsman et al., 2023, Stable and Low-Precision Training for Large-Scale Vision-Language
Models (arXiv:2304.13013), Algorithm 2: AdamW with the update clipping of Adafactor.
"""

from typing import Any

import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import corrections, ema, square
from .._engine.arrays.numerics import quotient, safe_increment, safe_sqrt
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

    In bfloat16 `nu` stops changing: widen it with `with_state_dtypes`.
    """
    return _stable(b1, b2, eps, None)


@rx.recipe
def _stable(b1: Any, b2: Any, eps: Any, weight_decay: Any) -> rx.Rule:
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
    """StableAdamW: AdamW with a learning rate that is clipped for each array.

        p = p - learning_rate (u + weight_decay p / max(1, rms))

    with u and rms of `scale_by_stable_adam`.

    learning_rate, weight_decay: scalars or schedules.
    b1, b2: decay rates of the EMAs of g and |g|², in [0, 1].
    eps: added to the square root, and its lower bound in rms; above 0.
    weight_decay_mask: which parameters decay; see `masked`.

    In bfloat16 `nu` stops changing: widen it with `with_state_dtypes`.
    """
    direction = _stable(b1, b2, eps, weight_decay)
    if weight_decay_mask is not None:
        rules = {"decays": direction, "stays": _stable(b1, b2, eps, None)}
        labels = split(weight_decay_mask, "decays", "stays", "weight_decay_mask")
        direction = partition(rules, labels)
    return chain(direction, scale_by_learning_rate(learning_rate))
