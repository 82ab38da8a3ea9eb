"""Scaling by a constant, a schedule or a learning rate, signs, and users' functions."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.numerics import safe_increment
from .._wrappers.partition import identity


ScaleState = rx.EmptyState


def value_at(x: rx.ScalarOrSchedule, count: jax.Array | int) -> Any:
    """The scalar `x`, or the value of the schedule `x` after `count` steps."""
    return x(count) if callable(x) else x


@rx.scheduled
@rx.promote_freely
def product(*factors: rx.ScalarOrSchedule) -> Any:
    """The product of scalars; a schedule if any factor is one."""
    if any(map(callable, factors)):
        return lambda count: math.prod(value_at(x, count) for x in factors)
    numbers: Any = factors
    return math.prod(numbers)


@rx.public()
def scale(step_size: rx.ArrayLike) -> rx.Rule:
    """Multiply by a constant: u = step_size g.

    step_size: the factor.
    """
    return rx.Rule(lambda g, p, ctx: (step_size * g,), elementwise=True)


@rx.optax_compatible
class ScaleByScheduleState(NamedTuple):
    """count: steps taken, a scalar."""

    count: jax.Array


@rx.public()
def scale_by_schedule(step_size_fn: rx.Schedule) -> rx.Rule:
    """Multiply by a factor that depends on the step: u = step_size_fn(t) g.

    step_size_fn: maps the number of steps taken before this one to the factor.
    """

    def prepare(scalars, stat, extra):
        (count,) = scalars
        return jnp.asarray(step_size_fn(count)), (safe_increment(count),)

    def leaf(g, p, ctx):
        return (ctx * g,)

    return rx.Rule(
        leaf, ScaleByScheduleState, scalars=rx.COUNT, prepare=prepare, elementwise=True
    )


@rx.public()
def scale_by_learning_rate(
    learning_rate: rx.ScalarOrSchedule | None = None, *, flip_sign: bool = True
) -> rx.GradientTransformationExtraArgs:
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


@rx.public()
def scale_by_sign() -> rx.Rule:
    """Take the sign of each element: u = sign(g)."""
    return rx.Rule(lambda g, p, ctx: (jnp.sign(g),), elementwise=True)


@rx.public()
def stateless(
    f: Callable[[rx.Updates, rx.Params | None], rx.Updates],
) -> rx.GradientTransformation:
    """Make a transformation from a function of the gradients: u = f(g, p).

    f: a function of two trees, the gradients and the parameters; the latter is `None`
        if `update` is called without parameters.
    """

    def update(updates, state, params=None, **extra_args):
        return f(updates, params), state

    return rx.transformation(rx.init_empty_state, update)


@rx.public()
def stateless_with_tree_map(f: Callable[[Any, Any], Any]) -> rx.GradientTransformation:
    """Make a transformation from a function of single arrays: u = f(g, p).

    f: a function of two arrays, a gradient and its parameter; the latter is `None` if
        `update` is called without parameters.  Not called for missing gradients.
    """

    def update(updates, state, params=None, **extra_args):
        if params is None:
            return rx.map_gradients(lambda g: f(g, None), updates), state
        return rx.map_gradients(f, updates, params=params), state

    return rx.transformation(rx.init_empty_state, update)
