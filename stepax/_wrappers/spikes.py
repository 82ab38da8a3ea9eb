"""Skipping steps whose gradient norm or loss spikes, and returning to an earlier one.

The rule is that of OLMo 2, Team OLMo, 2024, 2 OLMo 2 Furious (arXiv:2501.00656), as in
the code of its optimizers: skip a step that exceeds the mean of recent steps by several
standard deviations.

After a spike that lasts, Chowdhery et al., 2022, PaLM: Scaling Language Modeling with
Pathways (arXiv:2204.02311), section 5.1, restart from an earlier checkpoint and leave
out the batches around it.  Here the checkpoint is in the state, and the batches left
out are those that came since.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import mean_and_std, percentile, recorded
from .._engine.arrays.numerics import reduce_scalars, safe_increment, zero_count
from .._engine.factories.ranges import real_scalar, whole
from .._engine.step.leafwise import step
from ..tree import norm
from .monitor import declare_keywords


class SkipSpikesState(NamedTuple):
    """State of `skip_spikes`; all but the first and the last are scalars.

    recent: ring buffer of the watched quantities of the last accepted steps, the norm,
        the value or both; (rows, window) in float32.
    accepted: number of steps written to it.
    spikes_in_a_row: number of consecutive spikes so far.
    skipped: total number of skipped steps.
    inner_state: state of the inner transformation.
    """

    recent: jax.Array
    accepted: jax.Array
    spikes_in_a_row: jax.Array
    skipped: jax.Array
    inner_state: rx.OptState


# The keywords of `update` that are read.
_READS = {
    "norm": ("grad_norm",),
    "value": ("value", "loss"),
    "both": ("grad_norm", "value", "loss"),
}


@rx.public(
    "wrapper",
    paper="arXiv:2501.00656",
    ranges={
        "factor": rx.POSITIVE_CAP,
        "window": rx.AT_LEAST_1,
        "warmup": rx.AT_LEAST_0,
        "max_consecutive": rx.CAP,
    },
)
def skip_spikes(
    inner: rx.TransformationLike,
    factor: rx.ArrayLike = 6.0,
    window: int = 128,
    *,
    watch: Literal["norm", "value", "both"] = "norm",
    warmup: int = 64,
    max_consecutive: int = 10,
) -> rx.GradientTransformationExtraArgs:
    """Skip steps that spike, unless too many come in a row.

        x is a spike if x > mean + factor max(std, |mean| / 1000) or x is not finite
        u = inner(g) if x is not a spike, otherwise 0, with the inner state unchanged

    mean and std are those of x over the last accepted steps.  After `max_consecutive`
    spikes in a row all steps are accepted until one does not spike, so that a loss that
    has risen for good, or a broken program, does not go unnoticed; this includes NaN,
    which never enters the mean.

    inner: the transformation; it does not run for skipped steps.
    factor: standard deviations above the mean, above 0; with infinity no finite value
        is a spike.
    window: number of steps in the mean, at least 1.
    watch: which x to watch: "norm" of the gradient, "value" of the loss, or "both", of
        which neither may spike.
    warmup: accepted steps before the mean is used, at least 0.
    max_consecutive: steps in a row to skip, at least 0; may be infinite.

    `update` takes the watched loss as `value` or `loss`, and optionally the norm as
    `grad_norm`, by default that of the updates; all are passed on.

    Raises a `ValueError` for other values of `watch`; `update` raises a `TypeError` if
    a watched loss is missing or given twice, and a `ValueError` if it is not a real
    scalar.

    >>> tx = stepax.skip_spikes(stepax.adamw(1e-3), factor=6.0)
    """
    inner = rx.with_keywords(inner, "`inner` of `skip_spikes`")
    rx.errors.require_one_of("watch", watch, _READS)
    most = whole(max_consecutive)

    def init(params):
        recent = jnp.zeros((1 + (watch == "both"), window), jnp.float32)
        a, b, c = (zero_count() for _ in range(3))
        return SkipSpikesState(recent, a, b, c, inner.init(params))

    def update(updates, state, params=None, **extra_args):
        read = {k: extra_args.pop(k, None) for k in _READS[watch]}
        given = {k: x for k, x in read.items() if x is not None}
        x = _measured(updates, read, given)
        rx.errors.require_state("skip_spikes", SkipSpikesState, state)
        usual = (state.accepted < warmup) | _is_usual(x, state, factor)
        usual = usual & jnp.isfinite(x).all()
        n = jnp.where(usual, 0, safe_increment(state.spikes_in_a_row))
        is_accepted = usual | (n > most)

        old = state.inner_state
        u, new = rx.step_if(
            is_accepted, inner, updates, old, params, extra_args | given
        )
        enters = is_accepted & jnp.isfinite(x).all()
        recent = recorded(state.recent, state.accepted, x)
        return u, SkipSpikesState(
            recent=jnp.where(enters, recent, state.recent),
            accepted=jnp.where(enters, safe_increment(state.accepted), state.accepted),
            spikes_in_a_row=n.astype(jnp.int32),
            skipped=jnp.where(
                is_accepted, state.skipped, safe_increment(state.skipped)
            ),
            inner_state=new,
        )

    declare_keywords(update, _READS[watch])
    members = {"inner_state": inner}
    return rx.transformation(init, update, inner=members, stepped=was_not_skipped)


def was_not_skipped(old, new, extra):
    """Whether a call was a step; see `Closure.stepped`."""
    return new.skipped == old.skipped


def _measured(updates: rx.Updates, read: dict, given: dict) -> jax.Array:
    """The watched quantities; read: keywords of `update`, `None` where not given."""
    xs = {}
    if "grad_norm" in read:
        xs["grad_norm"] = given["grad_norm"] if "grad_norm" in given else norm(updates)
    if "value" in read:
        values = {k: given[k] for k in ("value", "loss") if k in given}
        if not values:
            raise TypeError(
                "`skip_spikes` reads the keyword `value`, or `loss`: "
                "call `update(updates, state, params, value=...)`"
            )
        if len(values) > 1:
            raise TypeError(
                "`skip_spikes` was given both `value` and `loss`, which are aliases: "
                "give one of them"
            )
        xs |= values
    found = [real_scalar(x, f"`{name}` of `skip_spikes`") for name, x in xs.items()]
    return jnp.stack([jnp.asarray(x, jnp.float32) for x in found])


@jax.jit
@rx.promote_freely
def _is_usual(x, state, factor):
    """Whether no x is far above the mean."""
    window = state.recent.shape[1]
    here = (jnp.arange(window) < jnp.minimum(state.accepted, window))[None]
    mean, std = mean_and_std(state.recent, here)
    most = mean + factor * jnp.maximum(std, jnp.abs(mean) / 1000)
    return (x <= jnp.where(factor < jnp.inf, most, jnp.inf)).all()  # 0 * inf is NaN


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
    inner: rx.TransformationLike,
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

    known: dict = {"hands_on": "inner_state", "inner": {"inner_state": inner}}
    known["stepped"] = lambda old, new, extra: new.settling == 0
    return rx.transformation(init, update, take_step=take_step, **known)


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
    return jax.tree.map(lambda p, x: p if rx.is_absent(x) else x, params, arrays)


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
