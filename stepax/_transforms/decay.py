"""Decoupled weight decay.

Loshchilov and Hutter, 2019, Decoupled Weight Decay Regularization (arXiv:1711.05101).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from .._engine.compose import build
from .._engine.numerics import safe_increment
from .._engine.partition import masked
from .._engine.protocol import (
    EmptyState,
    GradientTransformationExtraArgs,
    MaskOrFn,
    ScalarOrSchedule,
)
from .._engine.ranges import ANY
from .._engine.registry import public
from .._engine.rule import COUNT, Rule
from .._engine.twin import twin


AddDecayedWeightsState = EmptyState


@twin
class WeightDecaySchedule(NamedTuple):
    """count: steps taken, a scalar."""

    count: jax.Array


@public(ranges={"weight_decay": ANY})
def add_decayed_weights(
    weight_decay: ScalarOrSchedule = 0.0, mask: MaskOrFn = None
) -> GradientTransformationExtraArgs:
    """Pull the parameters towards zero: u = g + weight_decay p.

    weight_decay: a number at least 0, or a schedule of the step.
    mask: which parameters decay; see `masked`.
    """
    if mask is not None:
        return masked(add_decayed_weights(weight_decay), mask)
    if callable(weight_decay):

        def once(shared, total, extra):
            (count,) = shared
            return jnp.asarray(weight_decay(count)), (safe_increment(count),)

        rule = Rule(
            lambda g, p, c: (g + c * p,),
            WeightDecaySchedule,
            shared=COUNT,
            once=once,
            needs_params=True,
        )
    else:
        rule = Rule(lambda g, p, c: (g + weight_decay * p,), needs_params=True)
    return build(rule)
