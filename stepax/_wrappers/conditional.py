"""Transformations that run only at some steps."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._engine.arrays.numerics import safe_increment, strong_type, upcast
from .._engine.base.optax_types import optax_compatible
from .._engine.base.protocol import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    require_transformation,
    transformation,
    with_extra_args_support,
)
from .._engine.factories.registry import public
from .._engine.step.leafwise import keep_dtypes, map_gradients, zeros_like_updates
from .._engine.trees import errors
from .._engine.xla.branch import branch


class ConditionFn(Protocol):
    """Decides from the number of calls so far, and optionally keywords of `update`."""

    def __call__(self, step: jax.Array, /, **extra_args: Any) -> ArrayLike: ...


@optax_compatible
class ConditionallyTransformState(NamedTuple):
    """inner_state: state of `inner`.  step: number of calls of `update`, a scalar."""

    inner_state: Any
    step: jax.Array


@optax_compatible
class ConditionallyMaskState(NamedTuple):
    """step: number of calls of `update`, a scalar.  inner_state: state of `inner`."""

    step: jax.Array
    inner_state: Any


@public("wrapper")
def conditionally_transform(
    inner: GradientTransformation,
    should_transform_fn: ConditionFn,
    forward_extra_args: bool = False,
) -> GradientTransformationExtraArgs:
    """Apply a transformation at some steps, and pass updates through at the others.

        u = inner(g)  if should_transform_fn(step),  otherwise u = g

    At the other steps the transformation does not run, and its state is unchanged.

    inner: the transformation.
    should_transform_fn: maps the number of calls so far, an int32 scalar, to a boolean.
    forward_extra_args: whether `should_transform_fn` also receives the keywords of
        `update`.

    Raises a `TypeError` if `should_transform_fn` does not return a single boolean.
    """
    condition = should_transform_fn, forward_extra_args
    name, same = "conditionally_transform", lambda updates: updates
    return _conditional(name, inner, condition, ConditionallyTransformState, same)


@public("wrapper")
def conditionally_mask(
    inner: GradientTransformation,
    should_transform_fn: ConditionFn,
    forward_extra_args: bool = False,
) -> GradientTransformationExtraArgs:
    """Apply a transformation at some steps, and return zeros at the others.

        u = inner(g)  if should_transform_fn(step),  otherwise u = 0

    At the other steps the transformation does not run, and its state is unchanged.

    inner: the transformation.
    should_transform_fn: maps the number of calls so far, an int32 scalar, to a boolean.
    forward_extra_args: whether `should_transform_fn` also receives the keywords of
        `update`.

    Raises a `TypeError` if `should_transform_fn` does not return a single boolean.
    """
    condition = should_transform_fn, forward_extra_args
    name, zeros = "conditionally_mask", zeros_like_updates
    return _conditional(name, inner, condition, ConditionallyMaskState, zeros)


def _conditional(
    name: str,
    inner: GradientTransformation,
    condition: tuple[ConditionFn, bool],
    State: type,
    otherwise: Callable,
) -> GradientTransformationExtraArgs:
    """`inner` if the condition holds, else `otherwise` applied to the updates."""
    require_transformation(inner, "`inner`")
    inner = with_extra_args_support(inner)
    should_transform, is_informed = condition

    def init(params):
        return State(inner_state=inner.init(params), step=jnp.zeros([], jnp.int32))

    def update(updates, state, params=None, **extra_args):
        errors.require_state(name, State, state)
        # Both branches must return the same dtypes.
        updates, old = map_gradients(_floating, updates), state.inner_state

        def transform():
            new = inner.update(updates, old, params, **extra_args)
            return keep_dtypes(new, (updates, old))

        chosen = should_transform(state.step, **(extra_args if is_informed else {}))
        skip = lambda: (otherwise(updates), old)
        updates, new = branch(_boolean(chosen), transform, skip)
        return updates, State(inner_state=new, step=safe_increment(state.step))

    members = {"inner_state": inner}
    return transformation(init, update, inner=members, reads_any=is_informed)


def _floating(g):
    """A strongly typed gradient; integers become floating point, as in a rule."""
    return strong_type(g) if jnp.issubdtype(g.dtype, jnp.inexact) else upcast(g)


def _boolean(x):
    if jnp.shape(x) != ():
        raise TypeError(
            f"`should_transform_fn` returned an array of shape {jnp.shape(x)}, "
            "expected one boolean"
        )
    return x
