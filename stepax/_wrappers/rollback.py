"""Returning to an earlier step after the loss has spiked, and going on from there.

Chowdhery et al., 2022, PaLM: Scaling Language Modeling with Pathways
(arXiv:2204.02311), section 5.1: restart from a checkpoint before a spike, and leave out
the batches around it.  Here the checkpoint is in the state, and the batches left out
are those that came since.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import percentile, recorded
from .._engine.arrays.numerics import reduce_scalars, safe_increment, zero_count
from .._engine.factories.ranges import real_scalar
from .._engine.step.leafwise import step


# Each update of the way back adds 24 bits in float32 and 8 in bfloat16, so that this is
# enough wherever any number is.
_CALLS = 8 + 1


class RollbackState(NamedTuple):
    """State of `rollback`; all are scalars but the first and the last three.

    recent: ring buffer of the last values that did not exceed, (window,) in float32.
    accepted: number of values written to it.
    above: consecutive values that exceeded.
    age: steps since the copy was made.
    returns: number of returns to a copy.
    settling: calls of `update` that may still be needed to restore all bits, and 1;
        0 if the last call was a step.
    kept_params, kept_state: copies of the parameters, with a `MaskedNode` for what is
        not trained, and of the state of the inner transformation.
    inner_state: its present state.
    """

    recent: jax.Array
    accepted: jax.Array
    above: jax.Array
    age: jax.Array
    returns: jax.Array
    settling: jax.Array
    kept_params: rx.Params
    kept_state: rx.OptState
    inner_state: rx.OptState


@rx.public(
    "wrapper",
    paper="arXiv:2204.02311",
    ranges={
        "every": rx.AT_LEAST_1,
        "factor": rx.Range(1, excludes_least=True),
        "patience": rx.AT_LEAST_1,
        "window": rx.AT_LEAST_1,
    },
)
def rollback(
    inner: rx.GradientTransformation,
    every: rx.ArrayLike = 100,
    factor: rx.ArrayLike = 2.0,
    patience: rx.ArrayLike = 3,
    *,
    window: int = 50,
) -> rx.GradientTransformationExtraArgs:
    """Return to a copy of parameters and state when the loss stays too high.

        v exceeds if v > median + (factor - 1) |median|, or if it is not finite
        p, inner state = their copies   at the `patience`-th v in a row that exceeds
        u = inner(g)                    otherwise

    The median is that of the last values that did not exceed.  Both are copied as they
    are before a step whose value does not exceed, `every` steps after the last copy;
    the first copies are those of `init`.

    `stepax.step` restores every bit at once.  A sum of floats does not reach each, so
    `update` returns what is missing in the next call, or the next few, before it steps;
    it cannot restore parameters that are infinite or NaN, nor the sign of a zero.

    `update` takes the loss at `params` as `value`, and passes it on.

    inner: the transformation.
    every: steps between copies, at least 1.
    factor: how far above the median is too high, above 1.
    patience: consecutive values that exceed before it returns, at least 1.
    window: number of values in the median, at least 1.

    `update` raises a `TypeError` without `value`, and a `ValueError` without parameters
    and for a `value` that is not a real scalar.
    """
    inner = rx.with_keywords(inner, "`inner` of `rollback`")
    bounds = every, factor, patience

    def init(params):
        recent = jnp.zeros(window, jnp.float32)
        a, b, c, d, e = (zero_count() for _ in range(5))
        kept, now = inner.init(params), inner.init(params)  # as they may be donated
        return RollbackState(recent, a, b, c, d, e, _copies(params), kept, now)

    def update(updates, state, params=None, *, value=None, **extra_args):
        seen, like = _checked(state, params, value), rx.like_updates(updates, inner)
        # Whether the parameters are on the way back, and not yet their copies.
        missing = rx.branch(
            state.settling > 1,
            lambda: _differ(updates, params, state.kept_params),
            lambda: jnp.array(False),
        )
        is_back, new = _watched(state, params, seen, bounds, missing)

        def home():
            others = {"params": params, "kept": new.kept_params}
            return rx.map_gradients(_toward, like, **others), new.kept_state

        def go():
            old = state.inner_state
            found = inner.update(updates, old, params, value=value, **extra_args)
            return rx.keep_dtypes(found, (like, old))

        u, inner_state = rx.branch(is_back | missing, home, go)
        left = jnp.where(missing, state.settling - 1, 0)
        left = jnp.where(is_back, _CALLS, left)
        new = new._replace(settling=left, inner_state=inner_state)
        extra = {"value": value, **extra_args}
        return u, _aged(inner, state, new, is_back | missing, extra)

    def take_step(gradients, state, params, extra):
        seen = _checked(state, params, extra.get("value"))
        is_back, new = _watched(state, params, seen, bounds)

        def go():
            old = state.inner_state
            stepped, found = step(inner, gradients, old, params, **extra)
            return _arrays(stepped), rx.keep_dtypes(found, old)

        arrays, inner_state = rx.branch(
            is_back, lambda: (new.kept_params, new.kept_state), go
        )
        new = new._replace(settling=jnp.zeros_like(new.settling))
        new = new._replace(inner_state=inner_state)
        return _with(params, arrays), _aged(inner, state, new, is_back, extra)

    known: dict = {"hands_on": "inner_state", "stepped": _was_step}
    known |= {"inner": {"inner_state": inner}, "take_step": take_step}
    return rx.transformation(init, update, **known)


def _was_step(old, new, extra):
    return new.settling == 0


def _checked(
    state: RollbackState, params: rx.Params, value: rx.ArrayLike | None
) -> jax.Array:
    rx.errors.require_state("rollback", RollbackState, state)
    if params is None:
        raise ValueError("`rollback` keeps the parameters: pass them to `update`")
    if value is None:
        raise TypeError(
            "`rollback` reads the keyword `value`: "
            "call `update(updates, state, params, value=loss)`"
        )
    value = real_scalar(value, "`value` of `rollback`")
    return jnp.asarray(value, jnp.float32)


def _watched(state, params, value, bounds, missing: Any = False) -> tuple:
    """Whether to return, and the state after the value.

    bounds: `every`, `factor` and `patience`.
    missing: whether this call is on the way back: its value is that of no step.
    """
    every, factor, patience = bounds
    is_high = _is_high(state, value, factor) & ~jnp.asarray(missing)
    is_low = ~is_high & ~jnp.asarray(missing)
    above = jnp.where(is_high, safe_increment(state.above), 0)
    is_back, is_due = above >= patience, is_low & (state.age >= every)
    present, kept = state.inner_state, (state.kept_params, state.kept_state)
    kept = rx.branch(is_due, lambda: (_copies(params), present), lambda: kept)
    recent = recorded(state.recent, state.accepted, value)
    return is_back, state._replace(
        recent=jnp.where(is_low, recent, state.recent),
        accepted=jnp.where(is_low, safe_increment(state.accepted), state.accepted),
        above=jnp.where(is_back, 0, above),
        age=jnp.where(is_due | is_back, 0, state.age),
        returns=jnp.where(is_back, safe_increment(state.returns), state.returns),
        kept_params=kept[0],
        kept_state=kept[1],
    )


def _aged(inner, old, new, is_left_out, extra):
    """The new state, in which a call that was a step counts."""
    did = rx.node_of(inner).was_step(old.inner_state, new.inner_state, extra)
    stays = is_left_out if did is True else is_left_out | ~jnp.asarray(did)
    return new._replace(age=jnp.where(stays, new.age, safe_increment(new.age)))


@jax.jit
@rx.promote_freely
def _is_high(state, value, factor):
    """Whether a value is far above the median, or not finite."""
    window = state.recent.shape[0]
    here = jnp.arange(window) < state.accepted
    median = percentile(state.recent, here, 50.0)
    most = median + (factor - 1) * jnp.abs(median)
    is_known = state.accepted > 0
    return ~jnp.isfinite(value) | (is_known & ~(value <= most))


def _arrays(params: rx.Params, new: Callable = lambda p: p) -> list:
    """The parameters that are trained; others are not arrays, or are never changed."""
    return jax.tree.map(
        lambda p: new(p) if rx.is_trainable(p) else rx.MaskedNode(), params
    )


def _copies(params: rx.Params) -> list:
    return _arrays(params, rx.Slot(rx.copy_of, kind="copy").new)


def _with(params: rx.Params, arrays: list) -> rx.Params:
    """The parameters, with other arrays in place of those that are trained."""
    leaves, treedef = jax.tree.flatten(params)
    others = treedef.flatten_up_to(arrays)
    pairs = zip(leaves, others, strict=True)
    return treedef.unflatten(p if rx.is_absent(x) else x for p, x in pairs)


def _differ(updates, params, kept):
    """Whether an update may still bring a parameter closer to its copy."""

    def leaf(u, p, kept):
        return jnp.any((p != kept) & jnp.isfinite(p))

    given: dict = {"idle": lambda *row: None, "params": params, "kept": kept}
    found = jax.tree.leaves(rx.map_gradients(leaf, updates, **given))
    return reduce_scalars([jnp.array(False), *found], jnp.logical_or, jnp.any)


@rx.computed_wide
def _toward(u, p, kept):
    return kept - p
