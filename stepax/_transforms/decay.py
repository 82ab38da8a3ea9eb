"""Decoupled weight decay.

Loshchilov and Hutter, 2019, Decoupled Weight Decay Regularization (arXiv:1711.05101).

The `weight_decay` and `weight_decay_mask` arguments of optimizers are handled here.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import is_number
from .._wrappers.chain import chain
from .._wrappers.partition import masked
from .scale import following, product, scale_by_learning_rate, value_at


AddDecayedWeightsState = rx.EmptyState

# Why some optimizers only support the kind of decay "coupled".
AVERAGED = {"decay": "its parameters follow a sequence, which would not decay"}
ESTIMATED = {"decay": "its learning rate is only a factor of an estimated one"}
STORED = {"decay": "its parameters follow its state, which would not decay"}


@rx.optax_compatible
class WeightDecaySchedule(NamedTuple):
    """count: steps taken, a scalar."""

    count: jax.Array


@rx.public()
def add_decayed_weights(
    weight_decay: rx.ScalarOrSchedule = 0.0, mask: rx.MaskOrFn = None
) -> rx.GradientTransformationExtraArgs:
    """Add a multiple of the parameters to the updates: u = g + weight_decay p.

    weight_decay: a scalar, at least 0, or a schedule.
    mask: parameters to decay; see `masked`.
    """
    if mask is not None:
        return masked(add_decayed_weights(weight_decay), mask)
    options: Any = {"needs_params": True, "elementwise": True}
    if is_number(weight_decay) and weight_decay == 0:
        # Without the sum, which would read large parameters once more.
        return rx.build(rx.Rule(rx.unchanged, **options))

    def leaf(g, p, ctx):
        return (g + (weight_decay if ctx is None else ctx) * p,)

    if callable(weight_decay):
        options |= following(weight_decay, WeightDecaySchedule)
    return rx.build(rx.Rule(leaf, **options))


def decayed(
    weight_decay: rx.ScalarOrSchedule | None,
    mask: rx.MaskOrFn,
    *factors: rx.ScalarOrSchedule | None,
) -> tuple[rx.GradientTransformationExtraArgs, ...]:
    """The weight decay stage of a chain, as a tuple; empty if the decay is `None`.

    Without decay the state matches Optax 0.2.8, and `params` may be missing.

    factors: factors of the decay, if it is not applied before the learning rate.
    """
    if weight_decay is None:
        return ()
    amount = product(weight_decay, *factors) if factors else weight_decay
    return (add_decayed_weights(amount, mask),)


def decayed_after(
    learning_rate: rx.ScalarOrSchedule | None,
    weight_decay: rx.ScalarOrSchedule,
    mask: rx.MaskOrFn,
    skip: int = 0,
    is_proximal: bool = False,
    of_shape: Callable[..., rx.ArrayLike] | None = None,
    sizes: tuple[rx.ArrayLike, rx.ArrayLike] = (1, 0.0),
    axis_name: rx.AxisName = None,
) -> rx.GradientTransformationExtraArgs:
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


@rx.recorded
def _decay_of_sum(
    amount: rx.ScalarOrSchedule,
    skip: int,
    is_proximal: bool,
    of_shape: Callable | None,
    max_dim: rx.ArrayLike,
    otherwise: rx.ArrayLike,
    axis_name: rx.AxisName,
) -> rx.Rule:
    parts = rx.ArraySplit(axis_name)

    def now(count):
        now = value_at(amount, count)
        now = now / (1 + now) if is_proximal else now
        # The factor, too: leaves whose programs read the same numbers share them.
        return jnp.where(count < skip, 0, now), otherwise

    def leaf(u, p, ctx):
        amount, otherwise = ctx
        if of_shape is not None:
            amount = amount * of_shape(parts.shape(p), max_dim, otherwise)
        return (u - amount * (p + u),)

    return rx.Rule(
        leaf,
        WeightDecaySchedule,
        scalars=rx.COUNT,
        prepare=rx.from_count(now),
        needs_params=True,
        elementwise=of_shape is None,
    )


def descend(
    direction: rx.TransformationLike,
    learning_rate: rx.ScalarOrSchedule | None,
    weight_decay: rx.ScalarOrSchedule | None,
    mask: rx.MaskOrFn = None,
    alias: rx.MaskOrFn = None,
) -> rx.GradientTransformationExtraArgs:
    """The optimizer p = p - learning_rate (u + weight_decay p) of a direction u.

    weight_decay: `None` leaves that stage out, see `decayed`.
    mask, alias: which parameters decay, see `resolve_mask_alias`.
    """
    decay = decayed(weight_decay, resolve_mask_alias(mask, alias))
    return chain(direction, *decay, scale_by_learning_rate(learning_rate))


def descend_and_decay(
    direction: rx.TransformationLike,
    learning_rate: rx.ScalarOrSchedule | None,
    weight_decay: rx.ScalarOrSchedule,
    mask: rx.MaskOrFn,
    **options: Any,
) -> rx.GradientTransformationExtraArgs:
    """The optimizer p = (p - learning_rate u) (1 - learning_rate weight_decay)."""
    decay = decayed_after(learning_rate, weight_decay, mask, **options)
    return chain(direction, scale_by_learning_rate(learning_rate), decay)


def resolve_mask_alias(
    mask: rx.MaskOrFn, weight_decay_mask: rx.MaskOrFn
) -> rx.MaskOrFn:
    """The weight decay mask, given as `mask` (Optax's name) or `weight_decay_mask`."""
    if mask is not None and weight_decay_mask is not None:
        raise ValueError(
            "`mask` and `weight_decay_mask` are two names of one argument, the "
            "parameters that decay: give one of them"
        )
    return mask if weight_decay_mask is None else weight_decay_mask
