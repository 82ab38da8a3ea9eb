"""Grams: the size of Adam's update with the sign of the gradient.

Cao, Li and Song, 2024, Grams: Gradient Descent with Adaptive Momentum Scaling
(arXiv:2412.17107), Algorithm 1.

Difference from the authors' program: eps is added to the root of the bias-corrected
EMA, as in Adam; they add it before the correction.
"""

import jax.numpy as jnp
from jax.typing import ArrayLike

from .._engine.arrays.moments import corrections, ema, square_like
from .._engine.arrays.numerics import safe_sqrt
from .._engine.base import GradientTransformationExtraArgs, MaskOrFn, ScalarOrSchedule
from .._engine.factories.registry import public
from .._engine.step.rule import COUNT, MEAN_SQUARE, Rule, Slot, from_step
from .._transforms.decay import add_decayed_weights
from .._transforms.scale import scale_by_learning_rate
from .._wrappers.chain import chain
from .adam import ScaleByAdamState


PAPER = "arXiv:2412.17107"


@public(paper=PAPER)
def scale_by_grams(
    b1: ArrayLike = 0.9, b2: ArrayLike = 0.999, eps: ArrayLike = 1e-6
) -> Rule:
    """Give the modulus of Adam's update the sign, or the phase, of the gradient.

        u = sign(g) |mu / (1 - b1^t)| / (sqrt(nu / (1 - b2^t)) + eps)

    with mu and nu of `scale_by_adam`.  It is 0 where g is 0.

    b1, b2: decay rates of the EMAs of g and |g|², in [0, 1].
    eps: added to the square root, above 0.

    In bfloat16 `nu` stops changing: widen it with `with_state_dtypes`.
    """

    def leaf(g, p, ctx, mu, nu):
        c1, c2, _ = ctx
        mu = ema(mu, g, b1)
        nu = ema(nu, square_like(g, nu), b2)
        u = jnp.sign(g) * jnp.abs(mu / c1) / (safe_sqrt(nu / c2) + eps)
        return u, mu, nu

    prepare = from_step(corrections(b1, b2, False))
    slots = {"mu": Slot(), "nu": MEAN_SQUARE}
    return Rule(leaf, ScaleByAdamState, slots, COUNT, prepare, elementwise=True)


@public("optimizer", paper=PAPER)
def grams(
    learning_rate: ScalarOrSchedule = 1e-3,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-6,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_decay_mask: MaskOrFn = None,
) -> GradientTransformationExtraArgs:
    """Grams, with decoupled weight decay.

        p = p - learning_rate (u + weight_decay p),   u of `scale_by_grams`

    learning_rate, weight_decay: scalars or schedules.
    b1, b2: decay rates of the EMAs of g and |g|², in [0, 1].
    eps: added to the square root, above 0.
    weight_decay_mask: which parameters decay; see `masked`.

    In bfloat16 `nu` stops changing: widen it with `with_state_dtypes`.
    """
    return chain(
        scale_by_grams(b1, b2, eps),
        add_decayed_weights(weight_decay, weight_decay_mask),
        scale_by_learning_rate(learning_rate),
    )
