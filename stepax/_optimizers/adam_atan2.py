"""Adam-atan2: the angle between Adam's two means in place of their quotient.

Everett et al., 2024, Scaling Exponents Across Parameterizations and Optimizers
(arXiv:2407.05872), section 4.3.

The angle is bounded and does not depend on the scale of the gradients, so that there is
no epsilon.  Difference from the paper: weight decay is multiplied by the learning rate.
"""

import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import corrections, ema, square, square_like
from .._engine.arrays.numerics import safe_sqrt
from .._transforms.decay import descend
from .adam import ScaleByAdamState


PAPER = "arXiv:2407.05872"
_RANGES = {"a": rx.AT_LEAST_0, "b": rx.AT_LEAST_0}


@rx.public(paper=PAPER, ranges=_RANGES)
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

    In bfloat16 `nu` stops changing: widen it with `with_state_dtypes`.
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


@rx.public("optimizer", paper=PAPER, ranges=_RANGES)
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
    """Adam-atan2, with decoupled weight decay.

        p = p - learning_rate (u + weight_decay p),   u of `scale_by_adam_atan2`

    learning_rate, weight_decay: scalars or schedules.
    b1, b2: decay rates of the EMAs of g and |g|², in [0, 1].
    weight_decay_mask: which parameters decay; see `masked`.
    a: factor of the angle, at least 0; 1.27 makes |u| 1 for constant gradients.
    b: factor of the root, at least 0; |u| is linear up to about b times the root.

    In bfloat16 `nu` stops changing: widen it with `with_state_dtypes`.
    """
    direction = scale_by_adam_atan2(b1, b2, a=a, b=b)
    return descend(direction, learning_rate, weight_decay, weight_decay_mask)
