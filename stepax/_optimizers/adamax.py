"""Adam with the infinity norm, and with decoupled weight decay.

Kingma and Ba, 2015, Adam: A Method for Stochastic Optimization (arXiv:1412.6980),
Algorithm 2; Loshchilov and Hutter, 2019 (arXiv:1711.05101) for the decay.

Difference from the paper: eps is added to |g|, so that nu is never zero.
"""

import jax.numpy as jnp
from jax.typing import ArrayLike

from .._engine.arrays.moments import bias_correction, ema
from .._engine.base import GradientTransformationExtraArgs, MaskOrFn, ScalarOrSchedule
from .._engine.factories.registry import public
from .._engine.step.rule import COUNT, REAL, Rule, Slot, from_step
from .._transforms.decay import add_decayed_weights, decayed, resolve_mask_alias
from .._transforms.scale import scale_by_learning_rate
from .._wrappers.chain import chain
from .adam import ScaleByAdamState


@public(paper="arXiv:1412.6980")
def scale_by_adamax(
    b1: ArrayLike = 0.9, b2: ArrayLike = 0.999, eps: ArrayLike = 1e-8
) -> Rule:
    """Divide the EMA of g by the largest recent |g|.

        mu = b1 mu + (1 - b1) g,   nu = max(|g| + eps, b2 nu)
        u = mu / (1 - b1^t) / nu

    b1: decay rate of the EMA of g, in [0, 1].
    b2: decay rate of the running maximum, in [0, 1].
    eps: added to |g|, above 0.

    In bfloat16 `nu` stops changing: widen it with `with_state_dtypes`.
    """

    def leaf(g, p, c1, mu, nu):
        mu = ema(mu, g, b1)
        nu = jnp.maximum(jnp.abs(g) + eps, b2 * nu)
        return mu / c1 / nu, mu, nu

    slots = {"mu": Slot(), "nu": REAL}
    correction = from_step(lambda t: bias_correction(b1, t))
    return Rule(leaf, ScaleByAdamState, slots, COUNT, correction, elementwise=True)


@public("optimizer", paper="arXiv:1412.6980")
def adamax(
    learning_rate: ScalarOrSchedule,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-8,
    *,
    weight_decay: ScalarOrSchedule | None = None,
    weight_decay_mask: MaskOrFn = None,
) -> GradientTransformationExtraArgs:
    """AdaMax, with optional weight decay.

        p = p - learning_rate (u + weight_decay p),   u of `scale_by_adamax`

    learning_rate, weight_decay: scalars or schedules; no decay if `None`.
    b1: decay rate of the EMA of g, in [0, 1].
    b2: decay rate of the running maximum, in [0, 1].
    eps: added to |g|, above 0.
    weight_decay_mask: which parameters decay; see `masked`.

    In bfloat16 `nu` stops changing: widen it with `with_state_dtypes`.
    """
    return chain(
        scale_by_adamax(b1, b2, eps),
        *decayed(weight_decay, weight_decay_mask),
        scale_by_learning_rate(learning_rate),
    )


@public("optimizer", paper="arXiv:1711.05101")
def adamaxw(
    learning_rate: ScalarOrSchedule,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-8,
    weight_decay: ScalarOrSchedule = 1e-4,
    mask: MaskOrFn = None,
    *,
    weight_decay_mask: MaskOrFn = None,
) -> GradientTransformationExtraArgs:
    """AdaMax with decoupled weight decay.

        p = p - learning_rate (u + weight_decay p),   u of `scale_by_adamax`

    learning_rate, weight_decay: scalars or schedules.
    b1: decay rate of the EMA of g, in [0, 1].
    b2: decay rate of the running maximum, in [0, 1].
    eps: added to |g|, above 0.
    mask, weight_decay_mask: which parameters decay (aliases: give one); see `masked`.

    In bfloat16 `nu` stops changing: widen it with `with_state_dtypes`.
    """
    return chain(
        scale_by_adamax(b1, b2, eps),
        add_decayed_weights(weight_decay, resolve_mask_alias(mask, weight_decay_mask)),
        scale_by_learning_rate(learning_rate),
    )
