"""LaProp: Adam with the momentum taken after the division.

Ziyin, Wang and Ueda, 2020, LaProp: Separating Momentum and Adaptivity in Adam
(arXiv:2002.04839), Algorithm 1.

Difference from the authors' program: weight decay is multiplied by the learning rate,
so theirs is `weight_decay / learning_rate` here; it acts after the step, as in that
program.
"""

from jax.typing import ArrayLike

from .._engine.arrays.moments import corrections, ema, square_like
from .._engine.arrays.numerics import over_root
from .._engine.base import GradientTransformationExtraArgs, MaskOrFn, ScalarOrSchedule
from .._engine.factories.registry import public
from .._engine.step.rule import COUNT, MEAN_SQUARE, Rule, Slot, from_step
from .._transforms.decay import decayed_after
from .._transforms.scale import scale_by_learning_rate
from .._wrappers.chain import chain
from .adam import ScaleByAdamState


PAPER = "arXiv:2002.04839"


@public(paper=PAPER)
def scale_by_laprop(
    b1: ArrayLike = 0.9, b2: ArrayLike = 0.999, eps: ArrayLike = 1e-15
) -> Rule:
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

    prepare = from_step(corrections(b1, b2, False))
    slots = {"mu": Slot(), "nu": MEAN_SQUARE}
    return Rule(leaf, ScaleByAdamState, slots, COUNT, prepare, elementwise=True)


@public("optimizer", paper=PAPER)
def laprop(
    learning_rate: ScalarOrSchedule = 4e-4,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-15,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_decay_mask: MaskOrFn = None,
) -> GradientTransformationExtraArgs:
    """LaProp, with weight decay after the step.

        p = (p - learning_rate u) (1 - learning_rate weight_decay)

    with u of `scale_by_laprop`.

    learning_rate, weight_decay: scalars or schedules.
    b1, b2: decay rates of the EMAs of the quotient and of |g|², in [0, 1].
    eps: added to the square root, at least 0.
    weight_decay_mask: which parameters decay; see `masked`.

    In bfloat16 `nu` stops changing: widen it with `with_state_dtypes`.
    """
    return chain(
        scale_by_laprop(b1, b2, eps),
        scale_by_learning_rate(learning_rate),
        decayed_after(learning_rate, weight_decay, weight_decay_mask),
    )
