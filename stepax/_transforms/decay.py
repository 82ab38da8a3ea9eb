"""Decoupled weight decay.

Loshchilov and Hutter, 2019, Decoupled Weight Decay Regularization (arXiv:1711.05101).

The `weight_decay` and `weight_decay_mask` arguments of optimizers are handled here.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._engine.arrays.moments import is_number
from .._engine.arrays.numerics import safe_increment
from .._engine.base import (
    EmptyState,
    GradientTransformationExtraArgs,
    MaskOrFn,
    ScalarOrSchedule,
)
from .._engine.base.optax_types import optax_compatible
from .._engine.factories.recipe import recipe
from .._engine.factories.registry import public
from .._engine.step.array_split import ArraySplit, AxisName
from .._engine.step.plan import build
from .._engine.step.rule import COUNT, Rule, unchanged
from .._wrappers.partition import masked
from .scale import product, value_at


AddDecayedWeightsState = EmptyState

# Why some optimizers only support the kind of decay "coupled".
AVERAGED = {"decay": "its parameters follow a sequence, which would not decay"}
ESTIMATED = {"decay": "its learning rate is only a factor of an estimated one"}
STORED = {"decay": "its parameters follow its state, which would not decay"}


@optax_compatible
class WeightDecaySchedule(NamedTuple):
    """count: steps taken, a scalar."""

    count: jax.Array


@public()
def add_decayed_weights(
    weight_decay: ScalarOrSchedule = 0.0, mask: MaskOrFn = None
) -> GradientTransformationExtraArgs:
    """Add a multiple of the parameters to the updates: u = g + weight_decay p.

    weight_decay: a scalar, at least 0, or a schedule.
    mask: which parameters decay; see `masked`.
    """
    if mask is not None:
        return masked(add_decayed_weights(weight_decay), mask)
    return build(_decay(weight_decay))


def _decay(amount: ScalarOrSchedule) -> Rule:
    if is_number(amount) and amount == 0:
        # Without the sum, which would read large parameters once more.
        return Rule(unchanged, needs_params=True, elementwise=True)
    if not callable(amount):
        return Rule(
            lambda g, p, ctx: (g + amount * p,), needs_params=True, elementwise=True
        )

    def prepare(scalars, stat, extra):
        (count,) = scalars
        return jnp.asarray(amount(count)), (safe_increment(count),)

    return Rule(
        lambda g, p, ctx: (g + ctx * p,),
        WeightDecaySchedule,
        scalars=COUNT,
        prepare=prepare,
        needs_params=True,
        elementwise=True,
    )


def decayed(
    weight_decay: ScalarOrSchedule | None,
    mask: MaskOrFn,
    *factors: ScalarOrSchedule,
) -> tuple[GradientTransformationExtraArgs, ...]:
    """The weight decay stage of a chain, as a tuple; empty if the decay is `None`.

    Without decay the state matches Optax 0.2.8, and `params` may be missing.

    factors: factors of the decay, if it is not applied before the learning rate.
    """
    if weight_decay is None:
        return ()
    amount = product(weight_decay, *factors) if factors else weight_decay
    return (add_decayed_weights(amount, mask),)


def decayed_after(
    learning_rate: ScalarOrSchedule,
    weight_decay: ScalarOrSchedule,
    mask: MaskOrFn,
    skip: int = 0,
    is_proximal: bool = False,
    of_shape: Callable[..., ArrayLike] | None = None,
    sizes: tuple[ArrayLike, ArrayLike] = (1, 0.0),
    axis_name: AxisName = None,
) -> GradientTransformationExtraArgs:
    """Weight decay of the new parameters, p = (p + u) (1 - learning_rate weight_decay).

    It comes after the learning rate in a chain, for optimizers whose authors decay
    last.

    skip: the number of first steps without decay.
    is_proximal: whether to divide by 1 + learning_rate weight_decay instead.
    of_shape: maps the shape of a parameter, and `sizes`, to a factor of its decay.
    axis_name: how parameters are sharded inside of `shard_map`.
    """
    amount = product(learning_rate, weight_decay)
    decay = _decay_of_sum(amount, skip, is_proximal, of_shape, *sizes, axis_name)
    return decay if mask is None else masked(decay, mask)


@recipe
def _decay_of_sum(
    amount: ScalarOrSchedule,
    skip: int,
    is_proximal: bool,
    of_shape: Callable | None,
    max_dim: ArrayLike,
    otherwise: ArrayLike,
    axis_name: AxisName,
) -> Rule:
    parts = ArraySplit(axis_name)

    def prepare(scalars, stat, extra):
        (count,) = scalars
        now = value_at(amount, count)
        now = now / (1 + now) if is_proximal else now
        return jnp.where(count < skip, 0, now), (safe_increment(count),)

    def leaf(u, p, ctx):
        amount = ctx
        if of_shape is not None:
            amount = ctx * of_shape(parts.shape(p), max_dim, otherwise)
        return (u - amount * (p + u),)

    return Rule(
        leaf,
        WeightDecaySchedule,
        scalars=COUNT,
        prepare=prepare,
        needs_params=True,
        elementwise=of_shape is None,
    )


def resolve_mask_alias(mask: MaskOrFn, weight_decay_mask: MaskOrFn) -> MaskOrFn:
    """The weight decay mask, given as `mask` (Optax's name) or `weight_decay_mask`."""
    if mask is not None and weight_decay_mask is not None:
        raise ValueError(
            "`mask` and `weight_decay_mask` are two names of one argument, the "
            "parameters that decay: give one of them"
        )
    return mask if weight_decay_mask is None else weight_decay_mask
