"""Transformations that run only at some steps, or for gradients that are finite.

The loss scale, which keeps float16 gradients in range: Micikevicius and others, 2018,
Mixed Precision Training (arXiv:1710.03740), section 3.2, with the schedule of
`torch.amp.GradScaler`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from .._engine import rules as rx
from .._engine.arrays.numerics import (
    is_known,
    safe_increment,
    strong_type,
    upcast,
    zero_count,
)
from .._engine.factories.ranges import BOUND, whole
from .._engine.step.leafwise import branch_step
from .spikes import was_not_skipped


class ConditionFn(Protocol):
    """Decides from the number of calls so far, and optionally keywords of `update`."""

    def __call__(self, step: Any, /, **extra_args: Any) -> rx.ArrayLike: ...


if TYPE_CHECKING:  # without `forward_extra_args` it gets the number of calls alone
    _Condition: TypeAlias = ConditionFn | Callable[[Any], rx.ArrayLike]
else:  # such a function would be taken for a schedule
    _Condition = ConditionFn


@rx.optax_compatible
class ConditionallyTransformState(rx.optax.ConditionallyTransformState):
    """inner_state: state of `inner`.  step: number of calls of `update`, a scalar."""

    inner_state: rx.OptState
    step: jax.Array


@rx.optax_compatible
class ConditionallyMaskState(rx.optax.ConditionallyMaskState):
    """step: number of calls of `update`, a scalar.  inner_state: state of `inner`."""

    step: jax.Array
    inner_state: rx.OptState


@rx.public("wrapper")
def conditionally_transform(
    inner: rx.TransformationLike,
    should_transform_fn: _Condition,
    forward_extra_args: bool = False,
) -> rx.GradientTransformationExtraArgs:
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


@rx.public("wrapper")
def conditionally_mask(
    inner: rx.TransformationLike,
    should_transform_fn: _Condition,
    forward_extra_args: bool = False,
) -> rx.GradientTransformationExtraArgs:
    """Apply a transformation at some steps, and return zeros at the others.

        u = inner(g)  if should_transform_fn(step),  otherwise u = 0

    At the other steps the transformation does not run, and its state is unchanged.

    Arguments: those of `conditionally_transform`.

    Raises a `TypeError` if `should_transform_fn` does not return a single boolean.
    """
    condition = should_transform_fn, forward_extra_args
    name, zeros = "conditionally_mask", rx.zeros_like_updates
    return _conditional(name, inner, condition, ConditionallyMaskState, zeros)


def _conditional(name, inner, condition, State: Any, otherwise) -> Any:
    """`inner` if the condition holds, else `otherwise` applied to the updates."""
    inner = rx.with_keywords(inner, f"`inner` of `{name}`")
    should_transform, is_informed = condition

    def init(params):
        return State(inner_state=inner.init(params), step=jnp.zeros([], jnp.int32))

    def choose(state, extra):
        return should_transform(state.step, **(extra if is_informed else {}))

    def update(updates, state, params=None, **extra_args):
        rx.errors.require_state(name, State, state)
        # Both branches must return the same dtypes.
        updates, old = rx.map_gradients(_floating, updates), state.inner_state
        like = rx.like_updates(updates, inner)

        def transform():
            new = inner.update(updates, old, params, **extra_args)
            return rx.keep_dtypes(new, (like, old))

        chosen = choose(state, extra_args)
        if jnp.shape(chosen) != ():
            raise TypeError(
                "`should_transform_fn` returned an array of shape "
                f"{jnp.shape(chosen)}, expected one boolean"
            )
        u, new = rx.branch(chosen, transform, lambda: (otherwise(like), old))
        return u, State(inner_state=new, step=safe_increment(state.step))

    known: dict = {"inner": {"inner_state": inner}, "reads_any": is_informed}
    if State is ConditionallyMaskState:
        known["stepped"] = lambda old, new, extra: choose(old, extra)
    return rx.transformation(init, update, **known)


def _floating(g):
    """A strongly typed gradient; integers become floating point, as in a rule."""
    return strong_type(g) if jnp.issubdtype(g.dtype, jnp.inexact) else upcast(g)


@rx.optax_compatible
class ApplyIfFiniteState(rx.optax.ApplyIfFiniteState):
    """State of `apply_if_finite`; all but the last are scalars.

    notfinite_count: number of consecutive gradients that were not finite.
    last_finite: whether the last gradient was finite.
    total_notfinite: total number of gradients that were not finite.
    inner_state: state of the inner transformation.
    """

    notfinite_count: jax.Array
    last_finite: jax.Array
    total_notfinite: jax.Array
    inner_state: rx.OptState


@rx.public("wrapper", ranges={"max_consecutive_errors": BOUND})
def apply_if_finite(
    inner: rx.TransformationLike, max_consecutive_errors: int
) -> rx.GradientTransformationExtraArgs:
    """Skip gradients with NaN or infinities, unless too many come in a row.

        u = inner(g) if g is finite, otherwise 0, with the inner state unchanged

    After `max_consecutive_errors` such gradients in a row the following ones are
    accepted until one is finite, so that a broken program does not go unnoticed.

    inner: the transformation; skipped gradients do not affect its state.
    max_consecutive_errors: gradients in a row to skip; 0, or a negative number, accepts
        all, and infinity none.
    """
    inner = rx.with_keywords(inner, "`inner` of `apply_if_finite`")
    most = whole(max_consecutive_errors)

    def init(params):
        m, n = zero_count(), zero_count()
        return ApplyIfFiniteState(m, jnp.array(True), n, inner.init(params))

    def update(updates, state, params=None, **extra_args):
        rx.errors.require_state("apply_if_finite", ApplyIfFiniteState, state)
        finite = rx.all_finite(updates)
        count = safe_increment(state.notfinite_count)
        count = jnp.where(finite, jnp.zeros_like(count), count)
        total = safe_increment(state.total_notfinite)
        total = jnp.where(finite, state.total_notfinite, total)
        is_accepted = finite | (count > most)
        old = state.inner_state
        u, new = rx.step_if(is_accepted, inner, updates, old, params, extra_args)
        return u, ApplyIfFiniteState(count, finite, total, new)

    def stepped(old, new, extra):
        return new.last_finite | (new.notfinite_count > most)

    members = {"inner_state": inner}
    return rx.transformation(init, update, inner=members, stepped=stepped)


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

    >>> tx = stepax.dynamic_loss_scale(stepax.adamw(1e-3))
    >>> stepax.tree.get(tx.init(params), "loss_scale")
    Array(32768., dtype=float32)
    """
    inner = rx.with_keywords(inner, "`inner` of `dynamic_loss_scale`")
    if is_known(min_scale) and is_known(max_scale) and np.greater(min_scale, max_scale):
        raise ValueError(
            f"`dynamic_loss_scale`: `min_scale` is {min_scale}, expected at most "
            f"`max_scale`, {max_scale}"
        )

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
