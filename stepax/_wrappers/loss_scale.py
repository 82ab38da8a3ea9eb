"""A loss scale that keeps float16 gradients in range.

Micikevicius and others, 2018, Mixed Precision Training (arXiv:1710.03740), section 3.2,
with the schedule of `torch.amp.GradScaler`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.numerics import safe_increment, zero_count
from .._engine.step.leafwise import branch_step
from .spikes import was_not_skipped


class DynamicLossScaleState(NamedTuple):
    """State of `dynamic_loss_scale`; all but the last are scalars.

    loss_scale: factor for the next loss, in float32.
    good_steps: steps since the scale changed.
    skipped: total number of skipped steps.
    inner_state: state of the inner transformation.
    """

    loss_scale: jax.Array
    good_steps: jax.Array
    skipped: jax.Array
    inner_state: rx.OptState


_RANGES = {
    "initial": rx.POSITIVE,
    "growth_interval": rx.AT_LEAST_1,
    "factor": rx.Range(1, excludes_least=True),
    "min_scale": rx.POSITIVE,
    "max_scale": rx.POSITIVE_CAP,
}


@rx.public("wrapper", paper="arXiv:1710.03740", ranges=_RANGES)
def dynamic_loss_scale(
    inner: rx.TransformationLike,
    initial: rx.ArrayLike = 2.0**15,
    growth_interval: int = 2000,
    factor: rx.ArrayLike = 2.0,
    *,
    min_scale: rx.ArrayLike = 1.0,
    max_scale: rx.ArrayLike = 2.0**24,
) -> rx.GradientTransformationExtraArgs:
    """Unscale the gradients of a scaled loss, and adapt the scale.

        u = inner(g / scale) if g is finite, otherwise 0, with the inner state unchanged
        scale = scale / factor if g is not finite, scale * factor after growth_interval
            finite gradients in a row, always within [min_scale, max_scale]

    Multiply the loss by `tree.get(state, "loss_scale")`; keywords, such as the value of
    the loss, are passed on unchanged.  Gradients are divided in float32 or wider, and
    reach the inner transformation in that dtype; for parameters in float16, wrap
    `master_weights`, which also keeps moments in float32.

    inner: the transformation; it does not run for skipped gradients.
    initial: initial scale, above 0.
    growth_interval: finite gradients in a row before the scale grows, at least 1.
    factor: factor by which the scale grows and shrinks, above 1.
    min_scale, max_scale: bounds of the scale, above 0.
    """
    inner = rx.with_keywords(inner, "`inner` of `dynamic_loss_scale`")

    def init(params):
        bounded = rx.promote_freely(jnp.clip)
        scale = bounded(jnp.asarray(initial, jnp.float32), min_scale, max_scale)
        m, n = zero_count(), zero_count()
        return DynamicLossScaleState(scale, m, n, inner.init(params))

    def update(updates, state, params=None, **extra_args):
        rx.errors.require_state("dynamic_loss_scale", DynamicLossScaleState, state)
        scale, good, skipped, old = state

        def accept():
            g = rx.map_gradients(lambda g: _divided(g, scale), updates)
            return inner.update(g, old, params, **extra_args)

        finite = rx.all_finite(updates)
        like = rx.like_updates(updates, inner)
        u, new = branch_step(finite, accept, like, old)
        scale, good = _next(finite, scale, good)
        skipped = jnp.where(finite, skipped, safe_increment(skipped))
        return u, DynamicLossScaleState(scale, good, skipped, new)

    @rx.promote_freely
    def _next(finite, scale, good):
        good = jnp.where(finite, safe_increment(good), 0)
        is_due = good >= growth_interval
        grown = jnp.where(is_due, scale * factor, scale)
        new = jnp.clip(jnp.where(finite, grown, scale / factor), min_scale, max_scale)
        return new.astype(scale.dtype), jnp.where(is_due, jnp.zeros_like(good), good)

    members = {"inner_state": inner}
    return rx.transformation(init, update, inner=members, stepped=was_not_skipped)


@jax.jit
@rx.promote_freely
def _divided(g, scale):
    return g.astype(rx.compute_dtype(g)) * (1 / scale)
