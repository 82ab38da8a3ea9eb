"""Adadelta: scale gradients by the ratio of past updates to past gradients.

Zeiler, 2012, ADADELTA: An Adaptive Learning Rate Method (arXiv:1212.5701), Algorithm 1.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import ema, square
from .._transforms.decay import add_decayed_weights
from .._transforms.scale import scale_by_learning_rate
from .._wrappers.chain import chain
from .._wrappers.partition import identity


@rx.optax_compatible
class ScaleByAdaDeltaState(NamedTuple):
    """e_g, e_x: EMAs of |g|² and of |u|², shaped like the parameters."""

    e_g: Any
    e_x: Any


@rx.public(paper="arXiv:1212.5701")
def scale_by_adadelta(rho: rx.ArrayLike = 0.9, eps: rx.ArrayLike = 1e-6) -> rx.Rule:
    """Rescale the gradient to the RMS of past updates.

        e_g = rho e_g + (1 - rho) |g|²
        u = sqrt(e_x + eps) / sqrt(e_g + eps) g
        e_x = rho e_x + (1 - rho) |u|²

    rho: decay rate of both EMAs, in [0, 1].
    eps: added inside both square roots, above 0; it sets the size of the first update.

    In bfloat16 `e_g` and `e_x` stop changing: widen them with `with_state_dtypes`.
    """

    def leaf(g, p, ctx, e_g, e_x):
        e_g = ema(e_g, square(g), rho)
        u = jnp.sqrt(e_x + eps) / jnp.sqrt(e_g + eps) * g
        return u, e_g, ema(e_x, square(u), rho)

    return rx.Rule(
        leaf, ScaleByAdaDeltaState, {"e_g": rx.REAL, "e_x": rx.REAL}, elementwise=True
    )


@rx.public("optimizer", paper="arXiv:1212.5701")
def adadelta(
    learning_rate: rx.ScalarOrSchedule | None = None,
    rho: rx.ArrayLike = 0.9,
    eps: rx.ArrayLike = 1e-6,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """Adadelta: p = p - learning_rate u, with u of `scale_by_adadelta`.

    Weight decay is added to the gradient: g + weight_decay p.

    learning_rate: a scalar or a schedule; 1 in the paper.  With `None` the updates are
        u itself, as in Optax, and have to be subtracted.
    rho: decay rate of the EMAs of |g|² and |u|², in [0, 1].
    eps: added inside both square roots, above 0; it sets the size of the first update.
    weight_decay: a scalar, at least 0, or a schedule.
    weight_decay_mask: which parameters decay; see `masked`.

    In bfloat16 `e_g` and `e_x` stop changing: widen them with `with_state_dtypes`.
    """
    is_bare = learning_rate is None
    return chain(
        add_decayed_weights(weight_decay, weight_decay_mask),
        scale_by_adadelta(rho, eps),
        identity() if is_bare else scale_by_learning_rate(learning_rate),
    )
