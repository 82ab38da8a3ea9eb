"""Mean and variance of per-example gradients, and their moving averages.

The variances of several batches are combined as in Chan, Golub and LeVeque, 1983,
Algorithms for Computing the Sample Variance (DOI:10.1080/00031305.1983.10483115).

Differences from Optax: the state is stored in float32 or wider; there is no division by
0 for a batch of one example, or before the first; the weight of new values is 1 minus
the stored decay, consistent with the bias correction.
"""

import functools as ft
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .. import tree
from .._engine import rules as rx
from .._engine.arrays.moments import bias_correction
from .._engine.arrays.numerics import abs_sq, increment, is_numeric, upcast, zero_count
from .._engine.trees.search import is_present
from .._wrappers.chain import chain
from .._wrappers.partition import identity
from ._aggregate import (
    Aggregator,
    axes_of,
    check_steps,
    each,
    get_batch_size_from_per_elt_updates,
    process,
    wide_zeros,
)


@rx.optax_compatible
class PerElementMeanAndSumSqDiffGradsState(NamedTuple):
    """State of `get_per_element_mean_and_sum_sq_diff_grads`.

    micro_step: batches accumulated since the last result, a scalar.
    ready: whether the last call returned a result, a scalar.
    mean_grads: mean over the examples so far, shaped like the parameters.
    sum_sq_diff_grads: sum of squared deviations, shaped like the parameters.
    """

    micro_step: jax.Array
    ready: jax.Array
    mean_grads: rx.ArrayTree
    sum_sq_diff_grads: rx.ArrayTree


@rx.explain_misuse
def get_per_element_mean_and_sum_sq_diff_grads(
    per_elt_axis: int | Sequence[int] = 0, accumulation_steps: int = 1
) -> Aggregator:
    """An aggregator for the mean and the sum of squared deviations from it.

        mean = Σ g / B,   sum_sq_diff = Σ |g - mean|²      over B examples
        combined: δ = mean' - mean,   mean = mean + δ B / N,
                  sum_sq_diff = sum_sq_diff + sum_sq_diff' + |δ|² B (N - B) / N

    per_elt_axis: the axis, or axes, of examples.
    accumulation_steps: number of batches, at least 1.

    Its update returns the mean, and a dict of `sum_sq_diff_grads` and `sample_size`,
    the number N of examples, which is 0 while it accumulates.
    """
    check_steps(accumulation_steps)

    def init(params):
        if accumulation_steps == 1:
            return rx.init_empty_state(params)
        mean, sq = _zeros(wide_zeros, params), _zeros(_real_zeros, params)
        ready = jnp.zeros([], bool)
        return PerElementMeanAndSumSqDiffGradsState(zero_count(), ready, mean, sq)

    def update(per_elt_updates, state, params=None, **extra_args):
        size = get_batch_size_from_per_elt_updates(per_elt_updates, per_elt_axis)
        mean, sq = _moments(per_elt_updates, per_elt_axis)
        if accumulation_steps > 1:
            n = increment(state.micro_step)
            is_last = n >= accumulation_steps
            mean, sq, state = _joined(mean, sq, size, n, is_last, state)
            size = jnp.where(is_last, n * size, 0)
        mean = rx.keep_dtypes(mean, per_elt_updates)
        return (mean, {"sum_sq_diff_grads": sq, "sample_size": size}), state

    return Aggregator(init, update)


def _joined(mean, sq, size, n, is_last, state):
    """The result of n batches, and the next state."""

    def add(old, mean):
        return old + (mean - old) / n.astype(mean.real.dtype)

    def add_squares(old_sq, sq, old, mean):
        weight = (n - 1).astype(sq.dtype) * size / n.astype(sq.dtype)
        return old_sq + sq + abs_sq(mean - old) * weight

    old, old_sq = state.mean_grads, state.sum_sq_diff_grads
    sq = jax.tree.map(add_squares, old_sq, sq, old, mean)
    mean = jax.tree.map(add, old, mean)
    shown = tree.where(is_last, (mean, sq), tree.zeros_like((mean, sq)))
    kept = tree.where(is_last, tree.zeros_like((mean, sq)), (mean, sq))
    micro_step = jnp.where(is_last, 0, n)
    return *shown, PerElementMeanAndSumSqDiffGradsState(micro_step, is_last, *kept)


@rx.optax_compatible
class PerElementMeanAndVarianceEMAState(NamedTuple):
    """State of `track_per_element_mean_and_variance_with_ema`.

    count: steps taken, a scalar.
    ema_decay: decay rate, a scalar.
    mean_grads_ema, variance_grads_ema: EMAs, shaped like the parameters; see
        `get_unbiased_mean_and_variance_ema`.
    """

    count: jax.Array
    ema_decay: jax.Array
    mean_grads_ema: rx.ArrayTree
    variance_grads_ema: rx.ArrayTree


@rx.recorded
def track_per_element_mean_and_variance_with_ema(
    ema_decay: rx.ArrayLike = 0.9,
) -> rx.GradientTransformationExtraArgs:
    """Track EMAs of the gradient and of its variance over examples.

        mean = decay mean + (1 - decay) g
        variance = decay variance + (1 - decay) sum_sq_diff / (N - 1)

    The updates are passed on unchanged; if N is 0, the EMAs are unchanged, too.

    ema_decay: decay rate, in [0, 1).

    Its update needs the keywords `sum_sq_diff_grads` and `sample_size`, which the
    aggregator `get_per_element_mean_and_sum_sq_diff_grads` provides.
    """

    def init(params):
        decay = jnp.asarray(ema_decay, jnp.float32)
        mean, variance = _zeros(wide_zeros, params), _zeros(_real_zeros, params)
        return PerElementMeanAndVarianceEMAState(zero_count(), decay, mean, variance)

    def update(
        updates, state, params=None, *, sum_sq_diff_grads, sample_size, **extra_args
    ):
        size = jnp.asarray(sample_size)
        freedom = jnp.maximum(size - 1, 1)
        is_new = size > 0

        def mix(old, x, divisor: rx.ArrayLike = 1):
            decay = state.ema_decay.astype(old.real.dtype)
            x = x.astype(old.dtype) / jnp.asarray(divisor).astype(old.real.dtype)
            return jnp.where(is_new, decay * old + (1 - decay) * x, old)

        spread = ft.partial(mix, divisor=freedom)
        mean = _mixed(mix, state.mean_grads_ema, updates)
        variance = _mixed(spread, state.variance_grads_ema, sum_sq_diff_grads)
        count = jnp.where(is_new, increment(state.count), state.count)
        decay = state.ema_decay
        return updates, PerElementMeanAndVarianceEMAState(count, decay, mean, variance)

    return rx.transformation(init, update)


@rx.explain_misuse
def get_unbiased_mean_and_variance_ema(state: rx.OptState) -> tuple[Any, Any]:
    """The bias-corrected EMAs of the gradient and its variance.

        mean / (1 - decay^count),   and zeros before the first step

    state: state of an optimizer that contains
        `track_per_element_mean_and_variance_with_ema`.

    Raises ValueError if it does not contain exactly one.
    """
    found = tree.get_all_with_path(
        state, "PerElementMeanAndVarianceEMAState", is_present
    )
    if len(found) != 1:
        raise ValueError(
            f"`state` holds {len(found)} states of "
            "`track_per_element_mean_and_variance_with_ema`, expected 1"
        )
    ((_, ema),) = found
    t = jnp.maximum(ema.count, 1)
    rest = bias_correction(ema.ema_decay, t)

    def whole(x):
        return x / rest.astype(x.real.dtype)

    return each(whole, ema.mean_grads_ema), each(whole, ema.variance_grads_ema)


@rx.explain_misuse
def add_mean_variance_to_opt(
    opt: rx.TransformationLike,
    ema_decay: rx.ArrayLike = 0.9,
    per_elt_axis: int | Sequence[int] = 0,
    accumulation_steps: int = 1,
) -> Aggregator | rx.GradientTransformationExtraArgs:
    """Make an optimizer accept per-example gradients and track their mean and variance.

    opt: the optimizer, which receives the mean over examples and batches.
    ema_decay: decay rate, in [0, 1).
    per_elt_axis: the axis, or axes, of examples.
    accumulation_steps: number of batches to average over, at least 1.

    Read them with `get_unbiased_mean_and_variance_ema`.
    """
    track = track_per_element_mean_and_variance_with_ema(ema_decay)
    return process(
        identity(),
        get_per_element_mean_and_sum_sq_diff_grads(per_elt_axis, accumulation_steps),
        chain(track, opt),
        aggregator_has_aux=True,
    )


def _moments(gradients, axis):
    """Mean and sum of squared deviations, in float32 or wider."""
    axes = axes_of(axis)

    def squares(g):
        mean = jnp.mean(upcast(g), axis=axes, keepdims=True)
        return jnp.sum(abs_sq(upcast(g) - mean), axis=axes)

    mean = each(lambda g: jnp.mean(upcast(g), axis=axes), gradients)
    return mean, each(squares, gradients)


def _mixed(mix, old, new):
    def leaf(x, was):
        return mix(was, x) if rx.is_trainable(was) and is_numeric(x) else was

    return jax.tree.map(leaf, new, old)


def _zeros(make, params):
    return jax.tree.map(
        lambda p: rx.Slot(make).new(p) if rx.is_trainable(p) else None, params
    )


def _real_zeros(p):
    return wide_zeros(p).real
