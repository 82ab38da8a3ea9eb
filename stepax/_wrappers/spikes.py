"""Skipping steps whose gradient norm or loss spikes.

The rule is that of OLMo 2, Team OLMo, 2024, 2 OLMo 2 Furious (arXiv:2501.00656), as in
the code of its optimizers: skip a step that exceeds the mean of recent steps by several
standard deviations.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import mean_and_std, recorded
from .._engine.arrays.numerics import safe_increment, zero_count
from .._engine.factories.ranges import real_scalar, whole
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
    inner: rx.GradientTransformation,
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
    """Whether a call was a step; see `Record.stepped`."""
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
