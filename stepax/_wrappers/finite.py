"""Skipping gradients that are not finite."""

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
from .._engine.factories.ranges import BOUND, whole
from .._engine.factories.registry import public
from .._engine.step.leafwise import all_finite
from .._engine.step.plan import step_if
from .._engine.trees import errors


@optax_compatible
class ApplyIfFiniteState(NamedTuple):
    """State of `apply_if_finite`; all but the last are scalars.

    notfinite_count: number of consecutive gradients that were not finite.
    last_finite: whether the last gradient was finite.
    total_notfinite: total number of gradients that were not finite.
    inner_state: state of the inner transformation.
    """

    notfinite_count: jax.Array
    last_finite: jax.Array
    total_notfinite: jax.Array
    inner_state: OptState


@public("wrapper", ranges={"max_consecutive_errors": BOUND})
def apply_if_finite(
    inner: GradientTransformation, max_consecutive_errors: int
) -> GradientTransformationExtraArgs:
    """Skip gradients with NaN or infinities, unless too many come in a row.

        u = inner(g) if g is finite, otherwise 0, with the inner state unchanged

    After `max_consecutive_errors` such gradients in a row the following ones are
    accepted until one is finite, so that a broken program does not go unnoticed.

    inner: the transformation; skipped gradients do not affect its state.
    max_consecutive_errors: gradients in a row to skip, at least 0; infinity never
        accepts one.
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

    return transformation(init, update, inner={"inner_state": inner})
