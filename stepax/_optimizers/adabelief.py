"""AdaBelief: long steps where the gradient is as predicted, short steps elsewhere.

Zhuang et al., 2020, AdaBelief Optimizer: Adapting Stepsizes by the Belief in Observed
Gradients (arXiv:2010.07468), Algorithm 2.
"""

from typing import Any, NamedTuple

import jax

from .._engine import rules as rx
from .._engine.arrays.moments import corrected, corrections, ema, square
from .._engine.arrays.numerics import safe_sqrt
from .._transforms.decay import descend


@rx.optax_compatible
class ScaleByBeliefState(NamedTuple):
    """count: steps taken.

    mu: EMA of g.  nu: EMA of |g - mu|².  Both shaped like the parameters.
    """

    count: jax.Array
    mu: Any
    nu: Any


@rx.public(paper="arXiv:2010.07468")
def scale_by_belief(
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-16,
    eps_root: rx.ArrayLike = 1e-16,
    *,
    nesterov: bool = False,
) -> rx.Rule:
    """Divide the EMA of g by the root of the EMA of the squared surprise |g - mu|².

        mu = b1 mu + (1 - b1) g
        nu = b2 nu + (1 - b2) |g - mu|² + eps_root
        u = mu / (1 - b1^t) / (sqrt(nu / (1 - b2^t)) + eps)

    b1, b2: decay rates of the EMAs of g and |g - mu|², in [0, 1].
    eps, eps_root: added to the square root, and to `nu` at each step; at least 0.
    nesterov: whether to use Nesterov momentum.

    In bfloat16 `nu` stops changing: widen it with `with_state_dtypes`.
    """

    def leaf(g, p, ctx, mu, nu):
        c1, c2, c1_next = ctx
        mu = ema(mu, g, b1)
        nu = ema(nu, square(g - mu), b2) + eps_root
        m = corrected(mu, g, b1, c1, c1_next)
        return m / (safe_sqrt(nu / c2) + eps), mu, nu

    slots = {"mu": rx.Slot(), "nu": rx.REAL}
    prepare = rx.from_step(corrections(b1, b2, nesterov))
    return rx.Rule(leaf, ScaleByBeliefState, slots, rx.COUNT, prepare, elementwise=True)


@rx.public("optimizer", paper="arXiv:2010.07468")
def adabelief(
    learning_rate: rx.ScalarOrSchedule,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-16,
    eps_root: rx.ArrayLike = 1e-16,
    weight_decay: rx.ScalarOrSchedule | None = None,
    *,
    nesterov: bool = False,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """AdaBelief, with decoupled weight decay.

        p = p - learning_rate (u + weight_decay p),   u of `scale_by_belief`

    learning_rate, weight_decay: scalars or schedules; no decay if `None`.
    b1, b2: decay rates of the EMAs of g and |g - mu|², in [0, 1].
    eps, eps_root: added to the square root, and to `nu` at each step; at least 0.
    weight_decay_mask: which parameters decay; see `masked`.
    nesterov: whether to use Nesterov momentum.

    In bfloat16 `nu` stops changing: widen it with `with_state_dtypes`.
    """
    direction = scale_by_belief(b1, b2, eps, eps_root, nesterov=nesterov)
    return descend(direction, learning_rate, weight_decay, weight_decay_mask)
