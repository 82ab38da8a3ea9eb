"""Scaling by a constant, a schedule or a learning rate, signs, and users' functions."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._engine.arrays.numerics import safe_increment
from .._engine.arrays.precision import promote_freely
from .._engine.base import (
    EmptyState,
    GradientTransformation,
    GradientTransformationExtraArgs,
    Params,
    ScalarOrSchedule,
    Schedule,
    Updates,
    init_empty_state,
    transformation,
)
from .._engine.base.optax_types import optax_compatible
from .._engine.factories.registry import public
from .._engine.factories.scheduled import scheduled
from .._engine.step.leafwise import map_gradients
from .._engine.step.rule import COUNT, Rule
from .._wrappers.partition import identity


ScaleState = EmptyState


def value_at(x: ScalarOrSchedule, count: jax.Array | int) -> Any:
    """The scalar `x`, or the value of the schedule `x` after `count` steps."""
    return x(count) if callable(x) else x


@scheduled
@promote_freely
def product(*factors: ScalarOrSchedule) -> Any:
    """The product of scalars; a schedule if any factor is one."""
    if any(map(callable, factors)):
        return lambda count: math.prod(value_at(x, count) for x in factors)
    numbers: Any = factors
    return math.prod(numbers)


@public()
def scale(step_size: ArrayLike) -> Rule:
    """Multiply by a constant: u = step_size g.

    step_size: the factor.
    """
    return Rule(lambda g, p, ctx: (step_size * g,), elementwise=True)


@optax_compatible
class ScaleByScheduleState(NamedTuple):
    """count: steps taken, a scalar."""

    count: jax.Array


@public()
def scale_by_schedule(step_size_fn: Schedule) -> Rule:
    """Multiply by a factor that depends on the step: u = step_size_fn(t) g.

    step_size_fn: maps the number of steps taken before this one to the factor.
    """

    def prepare(scalars, stat, extra):
        (count,) = scalars
        return jnp.asarray(step_size_fn(count)), (safe_increment(count),)

    def leaf(g, p, ctx):
        return (ctx * g,)

    return Rule(
        leaf, ScaleByScheduleState, scalars=COUNT, prepare=prepare, elementwise=True
    )


@public()
def scale_by_learning_rate(
    learning_rate: ScalarOrSchedule | None = None, *, flip_sign: bool = True
) -> GradientTransformationExtraArgs:
    """Multiply by the negated learning rate: u = -learning_rate g.

    learning_rate: a scalar or a schedule, see `scale_by_schedule`; `None` leaves the
        updates unchanged.
    flip_sign: whether to negate the learning rate.
    """
    if learning_rate is None:
        return identity()
    sign = -1 if flip_sign else 1
    if isinstance(learning_rate, Callable):
        return scale_by_schedule(product(sign, learning_rate))
    rate: Any = learning_rate
    return scale(sign * rate)


@public()
def scale_by_sign() -> Rule:
    """Take the sign of each element: u = sign(g)."""
    return Rule(lambda g, p, ctx: (jnp.sign(g),), elementwise=True)


@public()
def stateless(f: Callable[[Updates, Params | None], Updates]) -> GradientTransformation:
    """Make a transformation from a function of the gradients: u = f(g, p).

    f: a function of two trees, the gradients and the parameters; the latter is `None`
        if `update` is called without parameters.
    """

    def update(updates, state, params=None, **extra_args):
        return f(updates, params), state

    return transformation(init_empty_state, update)


@public()
def stateless_with_tree_map(f: Callable[[Any, Any], Any]) -> GradientTransformation:
    """Make a transformation from a function of single arrays: u = f(g, p).

    f: a function of two arrays, a gradient and its parameter; the latter is `None` if
        `update` is called without parameters.  Not called for missing gradients.
    """

    def update(updates, state, params=None, **extra_args):
        if params is None:
            return map_gradients(lambda g: f(g, None), updates), state
        return map_gradients(f, updates, params=params), state

    return transformation(init_empty_state, update)
