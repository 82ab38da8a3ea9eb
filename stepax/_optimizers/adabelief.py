"""AdaBelief and ACProp: divide by how much gradients differ from their mean.

Zhuang et al., 2020, AdaBelief Optimizer: Adapting Stepsizes by the Belief in Observed
Gradients (arXiv:2010.07468), Algorithm 2; Zhuang et al., 2021, Momentum Centering and
Asynchronous Update for Adaptive Gradient Methods (arXiv:2110.05454), Algorithm 1.

Differences of ACProp from the paper, as in Optax: the surprise |g - mu|² uses the EMA
before it includes g, unless `center_late`; `nu` is bias-corrected; the first update is
the gradient itself.  Difference from Optax: the same holds for the first nonzero
gradient of a coordinate, such as the embedding of a rare word.  Optax divides it by
sqrt(eps_root), which makes the step 10^5 times too long.
"""

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays import moments
from .._engine.arrays.moments import corrected, corrections, ema, square
from .._engine.arrays.numerics import safe_sqrt
from .._transforms.decay import descend


@rx.optax_compatible
class ScaleByBeliefState(rx.optax.ScaleByBeliefState):
    """count: steps taken.

    mu: EMA of g.  nu: EMA of |g - mu|².  Both shaped like the parameters.
    """

    count: jax.Array
    mu: rx.ArrayTree
    nu: rx.ArrayTree


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

    In bfloat16 `nu` stalls: keep it in float32 with `with_state_dtypes`.
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
    learning_rate: rx.ScalarOrSchedule | None,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-16,
    eps_root: rx.ArrayLike = 1e-16,
    weight_decay: rx.ScalarOrSchedule | None = None,
    *,
    nesterov: bool = False,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """AdaBelief, with decoupled weight decay (Zhuang et al., 2020, arXiv:2010.07468).

        p = p - learning_rate (u + weight_decay p)
        with u the output of `scale_by_belief`

    learning_rate, weight_decay: scalars or schedules; no decay if `None`.
    weight_decay_mask: parameters to decay; see `masked`.
    Other arguments: those of `scale_by_belief`.
    """
    direction = scale_by_belief(b1, b2, eps, eps_root, nesterov=nesterov)
    return descend(direction, learning_rate, weight_decay, weight_decay_mask)


@rx.public(paper="arXiv:2110.05454")
def scale_by_acprop(
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-16,
    eps_root: rx.ArrayLike = 1e-16,
    *,
    center_late: bool = False,
) -> rx.Rule:
    """Divide by the RMS surprise, estimated up to the previous step.

        u = g / (sqrt(nu / (1 - b2^(t - 1))) + eps),   g / (1 + eps) while mu = 0
        nu = b2 nu + (1 - b2) |g - mu|² + eps_root
        mu = b1 mu + (1 - b1) g

    b1, b2: decay rates of the EMAs of g and |g - mu|², in [0, 1].
    eps, eps_root: added to the square root, and to `nu` at each step; at least 0.
    center_late: whether `nu` uses |g - mu|² with the new mu, as in the paper.

    In bfloat16 `nu` stalls: keep it in float32 with `with_state_dtypes`.
    """
    # The value of `nu` when all gradients are zero.
    nothing = eps_root / moments.one_minus(b2)

    def leaf(g, p, c2, mu, nu):
        is_new = (mu == 0) & (nu <= nothing)
        u = g / (safe_sqrt(jnp.where(is_new, 1, nu / c2)) + eps)
        new = ema(mu, g, b1)
        nu = ema(nu, square(g - (new if center_late else mu)), b2) + eps_root
        return u, new, nu

    slots = {"mu": rx.Slot(), "nu": rx.REAL}
    # The first step does not divide by it.
    prepare = rx.from_step(lambda t: moments.bias_correction(b2, jnp.maximum(t - 1, 1)))
    return rx.Rule(leaf, ScaleByBeliefState, slots, rx.COUNT, prepare, elementwise=True)


@rx.public("optimizer", paper="arXiv:2110.05454")
def acprop(
    learning_rate: rx.ScalarOrSchedule | None,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-16,
    eps_root: rx.ArrayLike = 1e-16,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    mask: rx.MaskOrFn = None,
    *,
    center_late: bool = False,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """ACProp, with decoupled weight decay (Zhuang et al., 2021, arXiv:2110.05454).

        p = p - learning_rate (u + weight_decay p)
        with u the output of `scale_by_acprop`

    learning_rate, weight_decay: scalars or schedules.
    mask, weight_decay_mask: parameters to decay (two aliases); see `masked`.
    Other arguments: those of `scale_by_acprop`.
    """
    direction = scale_by_acprop(b1, b2, eps, eps_root, center_late=center_late)
    return descend(direction, learning_rate, weight_decay, mask, weight_decay_mask)
