"""Values at given steps, joined by stairs, lines or half-cosines."""

from collections.abc import Mapping

import jax.numpy as jnp
from jax.core import Tracer
from jax.typing import ArrayLike

from .._engine import rules as rx
from .basic import constant_schedule
from .lengths import positive


@rx.scheduled
def piecewise_constant_schedule(
    init_value: ArrayLike, boundaries_and_scales: dict[int, float] | None = None
) -> rx.Schedule:
    """Scale the value at given steps.

    value(t) = I times all scales with boundary <= t
    value(0) = I;  from the last boundary on, I times all scales

    init_value: `I`.
    boundaries_and_scales: `{boundary: scale}`, in any order; ValueError for a scale
        that is negative, TypeError for a boundary that is not a number.
    """
    scales = _scales_at(boundaries_and_scales)

    def schedule(count):
        value = constant_schedule(jnp.asarray(1.0 * init_value))(count)
        for boundary, scale in sorted(scales.items()):
            value = jnp.where(count < boundary, value, scale * value)
        return value

    return rx.promote_freely(schedule)


@rx.scheduled
def piecewise_interpolate_schedule(
    interpolate_type: str,
    init_value: ArrayLike,
    boundaries_and_scales: dict[int, float] | None = None,
) -> rx.Schedule:
    """Interpolate between values at given steps, linearly or by half-cosines.

    v_0 = I at b_0 = 0;  v_i = v_(i-1) scale_i at boundary b_i
    s = (t - b_i) / (b_(i+1) - b_i)   for b_i <= t <= b_(i+1)
    value(t) = v_i + (v_(i+1) - v_i) s   or   v_i + (v_(i+1) - v_i) (1 - cos(pi s)) / 2
    value(0) = I;  from the last boundary on, I times all scales

    interpolate_type: "linear" or "cosine"; otherwise ValueError.
    init_value: `I`.
    boundaries_and_scales: `{boundary: scale}`, in any order; ValueError for a scale
        that is negative, TypeError for a boundary that is not a number.
    """
    if interpolate_type not in ("linear", "cosine"):
        raise ValueError(
            f"`interpolate_type` must be 'linear' or 'cosine', not {interpolate_type!r}"
        )
    scales = _scales_at(boundaries_and_scales)
    steps = sorted(scales)
    return _interpolate(interpolate_type, init_value, steps, [scales[i] for i in steps])


@rx.scheduled
@rx.promote_freely
def cosine_onecycle_schedule(
    transition_steps: rx.Whole,
    peak_value: ArrayLike,
    pct_start: float = 0.3,
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
) -> rx.Schedule:
    """Rise to a peak and decay to almost 0 (Smith & Topin, arXiv:1708.07120).

    half-cosines from I = P / div_factor at 0 to P at floor(pct_start T), and on to
    E = I / final_div_factor at T and later

    transition_steps, peak_value: `T`, positive, and `P`.
    pct_start: the fraction of rising steps, from 0 to 1; not a percentage.
    div_factor, final_div_factor: positive; ValueError for arguments out of range.
    """
    steps = _corners(transition_steps, [pct_start], div_factor, final_div_factor)
    scales = [div_factor, 1.0 / (div_factor * final_div_factor)]
    return _interpolate("cosine", peak_value / div_factor, steps, scales)


@rx.scheduled
@rx.promote_freely
def linear_onecycle_schedule(
    transition_steps: rx.Whole,
    peak_value: ArrayLike,
    pct_start: float = 0.3,
    pct_final: float = 0.85,
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
) -> rx.Schedule:
    """Rise to a peak, return, and anneal (Smith & Topin, arXiv:1708.07120).

    linear from I = P / div_factor at 0 to P at floor(pct_start T), back to I at
    floor(pct_final T), and on to E = I / final_div_factor at T and later

    transition_steps, peak_value: `T`, positive, and `P`.
    pct_start, pct_final: fractions of the steps, from 0 to 1, in this order.
    div_factor, final_div_factor: positive; ValueError for arguments out of range.
    """
    fractions = [pct_start, pct_final]
    steps = _corners(transition_steps, fractions, div_factor, final_div_factor)
    scales = [div_factor, 1.0 / div_factor, 1.0 / final_div_factor]
    return _interpolate("linear", peak_value / div_factor, steps, scales)


def _scales_at(boundaries_and_scales):
    scales = boundaries_and_scales
    if scales is None or isinstance(scales, list | tuple) and not scales:
        return {}
    if not isinstance(scales, Mapping):
        raise TypeError(
            "`boundaries_and_scales` must be a dict of {step: scale}, but is "
            f"{rx.errors.describe(scales)}"
        )
    for boundary, scale in scales.items():
        positive("boundaries_and_scales", boundary)
        positive(f"boundaries_and_scales[{boundary}]", scale, "not be negative")
    return dict(scales)


def _corners(steps, fractions, div_factor, final_div_factor):
    """Check the arguments; return the steps at which the phases of a cycle end."""
    positive("transition_steps", steps, "be positive")
    positive("div_factor", div_factor, "be positive")
    positive("final_div_factor", final_div_factor, "be positive")
    ends = [fraction * steps for fraction in (*fractions, 1)]
    if any(isinstance(x, Tracer) for x in (0, *fractions, *ends)):
        return [jnp.floor(end) for end in ends]
    if [0, *fractions, 1] != sorted([0, *fractions, 1]):
        raise ValueError(f"`pct_...` must be in order from 0 to 1, but are {fractions}")
    return [int(end) for end in ends]


def _interpolate(kind, init_value, boundaries, scales):
    """Pass through the products of the scales; the boundaries are in order."""

    def schedule(count):
        bounds = jnp.stack([0, *boundaries])
        values = jnp.cumprod(jnp.stack([init_value, *scales]))
        start, end, a, b = bounds[:-1], bounds[1:], values[:-1], values[1:]
        t = jnp.maximum(count, 0)
        s = (t - start) / jnp.maximum(end - start, 1)
        if kind == "linear":
            between = (b - a) * s + a
        else:
            between = b + (a - b) / 2.0 * (jnp.cos(jnp.pi * s) + 1)
        between = jnp.sum(jnp.where((start <= t) & (t < end), between, 0))
        return jnp.where(t < bounds[-1], between, values[-1])

    return rx.promote_freely(jnp.vectorize(schedule))
