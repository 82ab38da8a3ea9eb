"""Adam with the infinity norm, and with decoupled weight decay.

Kingma and Ba, 2015, Adam: A Method for Stochastic Optimization (arXiv:1412.6980),
Algorithm 2; Loshchilov and Hutter, 2019 (arXiv:1711.05101) for the decay.

Difference from the paper: eps is added to |g|, so that nu is never zero.
"""

import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import bias_correction, ema
from .._transforms.decay import descend
from .adam import ScaleByAdamState


@rx.public(paper="arXiv:1412.6980")
def scale_by_adamax(
    b1: rx.ArrayLike = 0.9, b2: rx.ArrayLike = 0.999, eps: rx.ArrayLike = 1e-8
) -> rx.Rule:
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

    slots = {"mu": rx.Slot(), "nu": rx.REAL}
    correction = rx.from_step(lambda t: bias_correction(b1, t))
    return rx.Rule(
        leaf, ScaleByAdamState, slots, rx.COUNT, correction, elementwise=True
    )


@rx.public("optimizer", paper="arXiv:1412.6980")
def adamax(
    learning_rate: rx.ScalarOrSchedule,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-8,
    *,
    weight_decay: rx.ScalarOrSchedule | None = None,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """AdaMax, with optional weight decay.

        p = p - learning_rate (u + weight_decay p),   u of `scale_by_adamax`

    learning_rate, weight_decay: scalars or schedules; no decay if `None`.
    b1: decay rate of the EMA of g, in [0, 1].
    b2: decay rate of the running maximum, in [0, 1].
    eps: added to |g|, above 0.
    weight_decay_mask: which parameters decay; see `masked`.

    In bfloat16 `nu` stops changing: widen it with `with_state_dtypes`.
    """
    direction = scale_by_adamax(b1, b2, eps)
    return descend(direction, learning_rate, weight_decay, weight_decay_mask)


@rx.public("optimizer", paper="arXiv:1711.05101")
def adamaxw(
    learning_rate: rx.ScalarOrSchedule,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.999,
    eps: rx.ArrayLike = 1e-8,
    weight_decay: rx.ScalarOrSchedule = 1e-4,
    mask: rx.MaskOrFn = None,
    *,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """AdaMax with decoupled weight decay.

        p = p - learning_rate (u + weight_decay p),   u of `scale_by_adamax`

    learning_rate, weight_decay: scalars or schedules.
    b1: decay rate of the EMA of g, in [0, 1].
    b2: decay rate of the running maximum, in [0, 1].
    eps: added to |g|, above 0.
    mask, weight_decay_mask: which parameters decay (aliases: give one); see `masked`.

    In bfloat16 `nu` stops changing: widen it with `with_state_dtypes`.
    """
    direction = scale_by_adamax(b1, b2, eps)
    return descend(direction, learning_rate, weight_decay, mask, weight_decay_mask)
