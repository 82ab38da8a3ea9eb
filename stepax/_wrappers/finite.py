"""Leaving out gradients that are not finite."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from .._engine.arrays.numerics import safe_increment
from .._engine.base.optax_types import optax_compatible
from .._engine.base.protocol import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    OptState,
    require_transformation,
    transformation,
    with_extra_args_support,
)
from .._engine.factories.ranges import CAP, whole
from .._engine.factories.registry import public
from .._engine.step.leafwise import all_finite
from .._engine.step.plan import step_if
from .._engine.trees import errors


@optax_compatible
class ApplyIfFiniteState(NamedTuple):
    """State of `apply_if_finite`; all but the last are scalars.

    notfinite_count: gradients in a row, up to now, that were not finite.
    last_finite: whether the last one was.
    total_notfinite: how many were not, in all.
    inner_state: of the inner transformation.
    """

    notfinite_count: jax.Array
    last_finite: jax.Array
    total_notfinite: jax.Array
    inner_state: OptState


@public("wrapper", ranges={"max_consecutive_errors": CAP})
def apply_if_finite(
    inner: GradientTransformation, max_consecutive_errors: int
) -> GradientTransformationExtraArgs:
    """Leave out gradients with a NaN or an infinity, unless they keep coming.

        u = inner(g) if g is finite, else 0 with the inner state as it was

    After `max_consecutive_errors` such gradients in a row the next ones are accepted,
    and go on being so until one is finite, so that a broken program is noticed.

    inner: the transformation; what is left out leaves no trace in its state.
    max_consecutive_errors: at least 0; infinity to accept none ever.
    """
    require_transformation(inner, "`inner` of `apply_if_finite`")
    most = whole(max_consecutive_errors)
    inner = with_extra_args_support(inner)

    def init(params):
        zero = lambda: jnp.zeros([], jnp.int32)
        return ApplyIfFiniteState(zero(), jnp.array(True), zero(), inner.init(params))

    def update(updates, state, params=None, **extra_args):
        errors.require_state("apply_if_finite", ApplyIfFiniteState, state)
        finite = all_finite(updates)
        count = safe_increment(state.notfinite_count)
        count = jnp.where(finite, jnp.zeros_like(count), count)
        total = safe_increment(state.total_notfinite)
        total = jnp.where(finite, state.total_notfinite, total)
        is_accepted = finite | (count > most)
        old = state.inner_state
        u, new = step_if(is_accepted, inner, updates, old, params, extra_args)
        return u, ApplyIfFiniteState(count, finite, total, new)

    return transformation(init, update, inner=(inner,))
