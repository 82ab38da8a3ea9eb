"""Adafactor: Adam's denominator, stored as two vectors per matrix.

Shazeer and Stern, 2018, Adafactor: Adaptive Learning Rates with Sublinear Memory Cost
(arXiv:1804.04235), Algorithms 4 and 5.

Differences from Optax: steps before `step_offset` count as the first one; in large
arrays squares are added up without being rounded first.
"""

import functools as ft
from collections.abc import Callable
from dataclasses import replace
from operator import mul

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import is_number, square
from .._engine.arrays.numerics import safe_increment, safe_rsqrt
from .._engine.xla.order import LARGE
from .._transforms.clip import at_most
from .._transforms.decay import decayed
from .._transforms.mean import ema
from .._transforms.norm import scale_by_param_block_rms
from .._transforms.scale import scale, scale_by_learning_rate
from .._wrappers.chain import chain
from .._wrappers.partition import identity


@rx.optax_compatible
class FactoredState(rx.optax.FactoredState):
    """count: steps taken.

    v_row, v_col: EMAs of |g|² averaged over the longest and the second longest axis.
    v: EMA of |g|², shaped like the parameter, where it is not factored.
    Fields that a parameter does not need have shape (1,).
    """

    count: jax.Array
    v_row: rx.ArrayTree
    v_col: rx.ArrayTree
    v: rx.ArrayTree


def _decay_rate_pow(i: rx.ArrayLike, exponent: rx.ArrayLike = 0.8) -> jax.Array:
    """1 - (i + 1)^-exponent after i steps."""
    t = jnp.asarray(i, jnp.float32) + 1
    return 1 - t ** -jnp.asarray(exponent, t.dtype)


@rx.public(paper="arXiv:1804.04235")
def scale_by_factored_rms(
    factored: bool = True,
    decay_rate: rx.ArrayLike = 0.8,
    step_offset: rx.ArrayLike = 0,
    min_dim_size_to_factor: int = 128,
    epsilon: rx.ArrayLike = 1e-30,
    decay_rate_fn: Callable[
        [rx.ArrayLike, rx.ArrayLike], rx.ArrayLike
    ] = _decay_rate_pow,
    *,
    axis_name: rx.AxisName = None,
) -> rx.Rule:
    """Divide by the root of a factored EMA of |g|²: row means times column means.

        b = decay_rate_fn(t, decay_rate),   1 - (t + 1)^-decay_rate by default
        v_row = b v_row + (1 - b) mean_row(|g|² + epsilon),   v_col alike
        u = g / sqrt(v_row v_col / mean(v_row))

    factored: whether to factor; otherwise, and for small arrays, v is stored in full.
    decay_rate: exponent of the decay, in (0, 1).
    step_offset: number of steps to subtract from t, which starts at 0.
    min_dim_size_to_factor: an array is factored if two of its axes are at least this
        long.
    epsilon: added to |g|², above 0.
    decay_rate_fn: maps t and `decay_rate` to the decay rate b.
    axis_name: mesh axis of sharded arrays inside `shard_map`; see `clip_by_block_rms`.

    In bfloat16 `v`, `v_col` and `v_row` stall: keep them in float32 with
    `with_state_dtypes`.
    """
    options = factored, decay_rate, step_offset, min_dim_size_to_factor, epsilon
    return _factored_rms(*options, decay_rate_fn, rx.ArraySplit(axis_name))


@rx.recorded
def scale_by_clipped_factored_rms(
    clipping_threshold: rx.ArrayLike,
    factored: bool,
    decay_rate: rx.ArrayLike,
    step_offset: rx.ArrayLike,
    min_dim_size_to_factor: int,
    epsilon: rx.ArrayLike,
    axis_name: rx.AxisName,
) -> rx.Rule:
    """`scale_by_factored_rms`, then `clip_by_block_rms`, with fewer passes."""
    options = factored, decay_rate, step_offset, min_dim_size_to_factor, epsilon
    parts = rx.ArraySplit(axis_name)
    return _factored_rms(*options, _decay_rate_pow, parts, clipping_threshold)


def _factored_rms(
    factored,
    decay_rate,
    step_offset,
    min_dim_size_to_factor,
    epsilon,
    decay_rate_fn,
    parts,
    clipping_threshold=None,
):
    def axes(shape):
        """The two longest axes, the longest last; `None` if either is too short."""
        order = sorted(range(len(shape)), key=shape.__getitem__)[-2:]
        is_long = len(order) == 2 and shape[order[0]] >= min_dim_size_to_factor
        return tuple(order) if factored and is_long else None

    def prepare(scalars, stat, extra):
        (count,) = scalars
        t = jnp.maximum(count - step_offset, 0)
        return jnp.asarray(decay_rate_fn(t, decay_rate)), (safe_increment(count),)

    def leaf(g, p, b, v_row, v_col, v):
        pair = axes(parts.shape(g))
        if pair is None:
            v = _mix(v, square(g) + epsilon, b)
            u = g * safe_rsqrt(v)
            return _clipped(clipping_threshold, u, u, parts), v_row, v_col, v
        second, longest = pair
        pairs = (g, longest), (_apart(g) if g.size >= LARGE else g, second)
        means = [parts.mean(_mean_square(x, epsilon, i), g, i) for x, i in pairs]
        v_row, v_col = (
            _mix(v, mean, b) for v, mean in zip((v_row, v_col), means, strict=True)
        )
        along = second - 1 if second > longest else second
        mean = parts.mean(jnp.mean(v_row, along, keepdims=True), g, second)
        row = safe_rsqrt(v_row / mean)
        rows, columns = jnp.expand_dims(row, longest), jnp.expand_dims(v_col, second)
        factors = g, rows, safe_rsqrt(columns)
        u = ft.reduce(mul, factors)
        measured = ft.reduce(mul, _apart(factors)) if g.size >= LARGE else u
        return _clipped(clipping_threshold, measured, u, parts), v_row, v_col, v

    def mean(number):
        """Zeros for the mean over one of the two longest axes, sharded alike."""

        def make(p):
            pair = axes(parts.shape(p))
            if pair is None:
                return _nothing(p)
            return rx.zeros_for(p, lambda p: jnp.sum(p, pair[number]))

        return replace(rx.REDUCED, make=make)

    def whole(p):
        return _nothing(p) if axes(parts.shape(p)) else jnp.zeros_like(p)

    full = replace(rx.REDUCED, make=whole)
    slots = {"v_row": mean(1), "v_col": mean(0), "v": full}
    return rx.Rule(leaf, FactoredState, slots, rx.COUNT, prepare)


# XLA writes a subexpression to memory if a reduction of a large array shares it with
# another reduction, or with a loop; computing it twice is faster.
_apart = jax.lax.optimization_barrier


def _mean_square(g, epsilon, axis):
    # XLA on a CPU fuses a sum of squares with their computation, but no other sum.
    if g.size >= LARGE and is_number(epsilon) and epsilon <= 1e-30:
        return jnp.mean(square(g), axis) + epsilon
    return jnp.mean(square(g) + epsilon, axis)


def _clipped(threshold, measured, u, parts):
    return u if threshold is None else at_most(threshold, measured, u, parts)


def _nothing(p: jax.Array) -> jax.Array:
    """Takes the place of a statistic that an array does not have, as in Optax."""
    return jnp.zeros(1, jnp.result_type(p))


def _mix(mean: jax.Array, x: jax.Array, decay: jax.Array) -> jax.Array:
    """`ema` with the summands in Optax's order."""
    return decay * mean + (1 - decay) * x


@rx.public("optimizer", paper="arXiv:1804.04235")
def adafactor(
    learning_rate: rx.ScalarOrSchedule | None = None,
    min_dim_size_to_factor: int = 128,
    decay_rate: rx.ArrayLike = 0.8,
    decay_offset: rx.ArrayLike = 0,
    multiply_by_parameter_scale: bool = True,
    clipping_threshold: rx.ArrayLike | None = 1.0,
    momentum: rx.ArrayLike | None = None,
    dtype_momentum: rx.DTypeLike = jnp.float32,
    weight_decay_rate: rx.ScalarOrSchedule | None = None,
    eps: rx.ArrayLike = 1e-30,
    factored: bool = True,
    weight_decay_mask: rx.MaskOrFn = None,
    *,
    weight_decay: rx.ScalarOrSchedule | None = None,
    axis_name: rx.AxisName = None,
) -> rx.GradientTransformationExtraArgs:
    """Adafactor (Shazeer and Stern, 2018, arXiv:1804.04235):
    p = p - (m + learning_rate weight_decay p), where m is the EMA of

        learning_rate rms(p) u / max(1, rms(u) / clipping_threshold)

    with u the output of `scale_by_factored_rms`, and rms(p) at least 1e-3.

    learning_rate: a scalar or a schedule; 1 if `None`.
    factored, min_dim_size_to_factor: whether to factor the EMA of |g|², and the least
        length of two axes of an array for that.
    decay_rate, decay_offset: exponent of the decay, in (0, 1), and the number of steps
        to subtract from t in it.
    eps: added to |g|², above 0.
    multiply_by_parameter_scale: whether to multiply by rms(p).
    clipping_threshold: largest rms of u, at least 1; no clipping if `None` or negative.
    momentum: decay rate of the EMA m, in [0, 1]; no momentum if `None`.
    dtype_momentum: storage dtype of m.
    weight_decay, weight_decay_rate: factors of p, at least 0, or schedules; the second
        is not multiplied by the learning rate; no decay if `None`.
    weight_decay_mask: parameters to decay; see `masked`.
    axis_name: mesh axis over which arrays are sharded inside `shard_map`.

    In bfloat16 `v`, `v_col` and `v_row` stall: keep them in float32 with
    `with_state_dtypes`.

    Raises a `ValueError` if both `weight_decay` and `weight_decay_rate` are given.

    >>> tx = stepax.adafactor(1e-2)
    """
    if weight_decay is not None and weight_decay_rate is not None:
        raise ValueError(
            "both `weight_decay` and `weight_decay_rate` are given: give one of them; "
            "the first is multiplied by the learning rate, the second is not"
        )
    means = factored, decay_rate, decay_offset, min_dim_size_to_factor, eps
    if clipping_threshold is None:
        steps = [scale_by_factored_rms(*means, axis_name=axis_name)]
    else:
        clipped = scale_by_clipped_factored_rms(clipping_threshold, *means, axis_name)
        # Optax's state has a separate entry for clipping.
        steps = [clipped, identity()]
    if learning_rate is not None:
        steps.append(scale_by_learning_rate(learning_rate, flip_sign=False))
    if multiply_by_parameter_scale:
        steps.append(scale_by_param_block_rms(axis_name=axis_name))
    if momentum is not None:
        steps.append(ema(momentum, False, dtype_momentum))
    rate = 1.0 if learning_rate is None else learning_rate
    steps += decayed(weight_decay_rate, weight_decay_mask)
    steps += decayed(weight_decay, weight_decay_mask, rate)
    return chain(*steps, scale(-1))
