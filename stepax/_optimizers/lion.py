"""Lion: the sign of an interpolation between the gradient and its EMA.

Chen et al., 2023, Symbolic Discovery of Optimization Algorithms (arXiv:2302.06675),
Algorithm 2.
"""

from typing import Literal

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import ema
from .._transforms.decay import descend


_RANGES = {"b2": rx.MOMENTUM}  # an average of gradients, and not of squares


@rx.optax_compatible
class ScaleByLionState(rx.optax.ScaleByLionState):
    """count: steps taken.  mu: EMA of g, shaped like the parameters."""

    count: jax.Array
    mu: rx.ArrayTree


@rx.traits("normalizes")
@rx.public(paper="arXiv:2302.06675", ranges=_RANGES)
def scale_by_lion(
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.99,
    mu_dtype: rx.DTypeLike | None = None,
    *,
    mode: Literal["hard", "smooth", "refined"] = "hard",
    smooth_beta: float = 1.0,
) -> rx.Rule:
    """Take the sign of an interpolation between the gradient and its EMA.

        x = b1 mu + (1 - b1) g,   mu = b2 mu + (1 - b2) g
        u = sign(x),   tanh(smooth_beta x),   or x clipped to [-1, 1]

    b1: weight of the momentum in the update, in [0, 1].
    b2: decay rate of the momentum, in [0, 1].
    mu_dtype: dtype of `mu`; defaults to the parameter's.
    mode: "hard", "smooth" or "refined": which of the three u above.
    smooth_beta: steepness of the smooth sign, above 0.

    `update` raises a `ValueError` for other modes.
    """
    signs = {
        "hard": jnp.sign,
        "smooth": lambda x: jnp.tanh(smooth_beta * x),
        "refined": lambda x: jnp.clip(x, -1.0, 1.0),
    }

    def leaf(g, p, ctx, mu):
        # Raised in `update` rather than above, as in Optax.
        rx.require_one_of("mode", mode, signs)
        return signs[mode](ema(mu, g, b1)), ema(mu, g, b2)

    slots = {"mu": rx.Slot(dtype=mu_dtype)}
    return rx.Rule(leaf, ScaleByLionState, slots, rx.COUNT, elementwise=True)


@rx.public("optimizer", paper="arXiv:2302.06675", ranges=_RANGES)
def lion(
    learning_rate: rx.ScalarOrSchedule | None,
    b1: rx.ArrayLike = 0.9,
    b2: rx.ArrayLike = 0.99,
    mu_dtype: rx.DTypeLike | None = None,
    weight_decay: rx.ScalarOrSchedule = 1e-3,
    mask: rx.MaskOrFn = None,
    *,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """Lion, with decoupled weight decay (Chen et al., 2023, arXiv:2302.06675).

        p = p - learning_rate (u + weight_decay p), with u the output of `scale_by_lion`

    learning_rate, weight_decay: scalars or schedules.
    b1, b2: weight of the momentum in the update, and its decay rate, in [0, 1].
    mu_dtype: dtype of `mu`; defaults to the parameter's.
    mask, weight_decay_mask: parameters to decay (two aliases); see `masked`.

    >>> tx = stepax.lion(1e-4, weight_decay=0.1)
    """
    direction = scale_by_lion(b1, b2, mu_dtype)
    return descend(direction, learning_rate, weight_decay, mask, weight_decay_mask)
