"""Skipping steps whose gradient norm or loss spikes.

The rule is that of OLMo 2, Team OLMo, 2024, 2 OLMo 2 Furious (arXiv:2501.00656), as in
the code of its optimizers: skip a step that exceeds the mean of recent steps by several
standard deviations.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import mean_and_std, recorded
from .._engine.arrays.numerics import safe_increment, zero_count
from .._engine.factories.ranges import real_scalar, whole
from ..tree import norm


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


_ROWS = {"norm": 1, "value": 1, "both": 2}


@rx.public(
    "wrapper",
    paper="arXiv:2501.00656",
    ranges={
        "factor": rx.CAP,
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
    factor: standard deviations above the mean, at least 0; with infinity no finite
        value is a spike.
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
    rx.errors.require_one_of("watch", watch, _ROWS)

    def init(params):
        recent = jnp.zeros((_ROWS[watch], window), jnp.float32)
        a, b, c = (zero_count() for _ in range(3))
        return SkipSpikesState(recent, a, b, c, inner.init(params))

    step = _step(inner, factor, warmup, whole(max_consecutive))

    def of_norm(updates, state, params=None, *, grad_norm=None, **extra_args):
        x = _measured(_norm(updates, grad_norm))
        return step(updates, state, params, x, _given(extra_args, grad_norm=grad_norm))

    def of_value(updates, state, params=None, *, value=None, loss=None, **extra_args):
        x = _measured(_value(value, loss))
        extra_args = _given(extra_args, value=value, loss=loss)
        return step(updates, state, params, x, extra_args)

    def of_both(
        updates,
        state,
        params=None,
        *,
        value=None,
        loss=None,
        grad_norm=None,
        **extra_args,
    ):
        x = _measured(_norm(updates, grad_norm) | _value(value, loss))
        given = {"value": value, "loss": loss, "grad_norm": grad_norm}
        return step(updates, state, params, x, _given(extra_args, **given))

    update = {"norm": of_norm, "value": of_value, "both": of_both}[watch]
    return rx.transformation(init, update, inner={"inner_state": inner})


def _step(
    inner: rx.GradientTransformationExtraArgs,
    factor: rx.ArrayLike,
    warmup: int,
    most: rx.ArrayLike,
) -> Callable:
    """The update, given the measured quantities."""

    def step(updates, state, params, x, extra_args):
        rx.errors.require_state("skip_spikes", SkipSpikesState, state)
        usual = (state.accepted < warmup) | _is_usual(x, state, factor)
        usual = usual & jnp.isfinite(x).all()
        n = jnp.where(usual, 0, safe_increment(state.spikes_in_a_row))
        is_accepted = usual | (n > most)

        old = state.inner_state
        u, new = rx.step_if(is_accepted, inner, updates, old, params, extra_args)
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

    return step


def _given(extra_args: dict, **own: Any) -> dict:
    """The keywords for the inner transformation: those that were passed."""
    return extra_args | {k: x for k, x in own.items() if x is not None}


def _norm(updates: Any, grad_norm: Any) -> dict:
    return {"grad_norm": norm(updates) if grad_norm is None else grad_norm}


def _value(value: Any, loss: Any) -> dict:
    if value is None and loss is None:
        raise TypeError(
            "`skip_spikes` reads the keyword `value`, or `loss`: "
            "call `update(updates, state, params, value=...)`"
        )
    if value is not None and loss is not None:
        raise TypeError(
            "`skip_spikes` was given both `value` and `loss`, which are aliases: give "
            "one of them"
        )
    return {"loss": loss} if value is None else {"value": value}


def _measured(xs: dict) -> jax.Array:
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
