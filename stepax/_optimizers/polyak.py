"""Polyak's step size: proportional to the gap between the loss and its minimum.

Loizou, Vaswani, Laradji and Lacoste-Julien, 2021, Stochastic Polyak Step-size for SGD
(arXiv:2002.10542), equation SPS_max; Garrigos, Gower and Schaipp, 2023, Function Value
Learning (arXiv:2307.14528), for the positive part.
"""

from typing import Literal

import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import square
from .._transforms.decay import decayed
from .._wrappers.chain import chain
from .sgd import sgd


@rx.public(paper="arXiv:2002.10542")
def scale_by_polyak(
    f_min: rx.ArrayLike = 0.0,
    max_learning_rate: rx.ArrayLike = 1.0,
    eps: rx.ArrayLike = 0.0,
    variant: Literal["sps", "sps+"] = "sps",
) -> rx.Rule:
    """Multiply by Polyak's step size.

        u = min(gap / (‖g‖² + eps), max_learning_rate) g
        gap = value - f_min,   max(value - f_min, 0) for "sps+"

    `update` takes the keyword `value`, the loss at the parameters, a scalar.

    f_min: minimum of the loss.
    max_learning_rate: upper bound of the step size, above 0.
    eps: added to the divisor, at least 0; a zero gradient gives a zero update.
    variant: "sps" or "sps+".

    Raises a `ValueError` for other variants, and a `TypeError` if `value` is missing.
    """
    if variant not in ("sps", "sps+"):
        raise ValueError(f"`variant` is {variant!r}, expected 'sps' or 'sps+'")

    def prepare(scalars, stat, extra):
        norm = jnp.asarray(stat)
        gap = jnp.asarray(extra["value"]).astype(norm.dtype) - f_min
        gap = jnp.maximum(gap, 0) if variant == "sps+" else gap
        is_zero = norm + eps == 0
        step_size = gap / jnp.where(is_zero, 1, norm + eps)
        return jnp.where(is_zero, 0, jnp.minimum(step_size, max_learning_rate)), ()

    return rx.Rule(
        lambda g, p, step_size: (step_size * g,),
        prepare=prepare,
        leaf_stat=lambda g, p, scalars: jnp.sum(square(g)),
        reads=("value",),
        elementwise=True,
    )


@rx.public("optimizer", paper="arXiv:2002.10542")
def polyak_sgd(
    max_learning_rate: rx.ArrayLike = 1.0,
    scaling: rx.ScalarOrSchedule = 1.0,
    f_min: rx.ArrayLike = 0.0,
    eps: rx.ArrayLike = 0.0,
    variant: Literal["sps", "sps+"] = "sps",
    *,
    weight_decay: rx.ScalarOrSchedule | None = None,
    weight_decay_mask: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """Gradient descent with Polyak's step size: p = p - scaling (u + weight_decay p).

    u is the output of `scale_by_polyak` for the gradient, multiplied by -scaling first.
    Weight decay does not depend on the step size, which is 0 at the minimum.

    max_learning_rate: upper bound of the step size, above 0.
    scaling, weight_decay: scalars or schedules; no decay if `None`.
    weight_decay_mask: which parameters decay; see `masked`.
    f_min: minimum of the loss.
    eps: added to ‖g‖², at least 0; a zero gradient gives a zero update.
    variant: "sps", or "sps+", which takes no step if the loss is below `f_min`.
    """
    return chain(
        sgd(scaling),
        scale_by_polyak(f_min, max_learning_rate, eps, variant),
        *decayed(weight_decay, weight_decay_mask, scaling, -1.0),
    )
