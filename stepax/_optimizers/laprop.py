"""LaProp: Adam with the momentum taken after the division.

Ziyin, Wang and Ueda, 2020, LaProp: Separating Momentum and Adaptivity in Adam
(arXiv:2002.04839), Algorithm 1.

Difference from the authors' program: weight decay is multiplied by the learning rate,
so theirs is `weight_decay / learning_rate` here; it acts after the step, as in that
program.
"""

from .._engine import rules as rx
from .._engine.arrays.moments import corrections, ema, square_like
from .._engine.arrays.numerics import over_root
from .._transforms.decay import descend_and_decay
from .adam import ScaleByAdamState


PAPER = "arXiv:2002.04839"


@rx.public(paper=PAPER)
def scale_by_laprop(
    b1: rx.ArrayLike = 0.9, b2: rx.ArrayLike = 0.999, eps: rx.ArrayLike = 1e-15
) -> rx.Rule:
    """Average gradients, each divided by the root of the EMA of |g|².

        nu = b2 nu + (1 - b2) |g|²
        mu = b1 mu + (1 - b1) g / (sqrt(nu / (1 - b2^t)) + eps)
        u = mu / (1 - b1^t)

    b1, b2: decay rates of the EMAs of the quotient and of |g|², in [0, 1].
    eps: added to the square root, at least 0.

    In bfloat16 `nu` stops changing: widen it with `with_state_dtypes`.
    """

    def leaf(g, p, ctx, mu, nu):
        c1, c2, _ = ctx
        nu = ema(nu, square_like(g, nu), b2)
        mu = ema(mu, over_root(g, nu / c2, eps), b1)
        return mu / c1, mu, nu

    prepare = rx.from_step(corrections(b1, b2, False))
    slots = {"mu": rx.Slot(), "nu": rx.MEAN_SQUARE}
    return rx.Rule(leaf, ScaleByAdamState, slots, rx.COUNT, prepare, elementwise=True)


@rx.public("optimizer", paper=PAPER)
def laprop(
    learning_rate: rx.ScalarOrSchedule = 4e-4,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-15,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """LaProp, with weight decay after the step.

        p = (p - learning_rate u) (1 - learning_rate weight_decay)

    with u of `scale_by_laprop`.

    learning_rate, weight_decay: scalars or schedules.
    b1, b2: decay rates of the EMAs of the quotient and of |g|², in [0, 1].
    eps: added to the square root, at least 0.
    weight_decay_mask: which parameters decay; see `masked`.

    In bfloat16 `nu` stops changing: widen it with `with_state_dtypes`.
    """
    direction = scale_by_laprop(b1, b2, eps)
    return descend_and_decay(direction, learning_rate, weight_decay, weight_decay_mask)
