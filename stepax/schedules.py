"""Schedules: scalars, such as the learning rate, that depend on the step.

A schedule is a function of the step count, a Python scalar or an array; its value has
the shape of the count.  In the formulas `t` is the count, `I`, `P` and `E` are the
initial, peak and end value, and `T` is a number of steps; any of them may be traced.
Float32 values are Optax's bit for bit, with these differences:

1. Arrays of counts and strict dtype promotion work everywhere.
2. A phase of 0 steps is skipped: a warm-up over 0 steps starts at the peak.
3. Linear phases end, and staircases change, at the exact step, even where compilers
   round divisions inaccurately.
4. Invalid arguments raise a ValueError: negative warm-ups, rates and factors, phases
   out of order, boundaries that do not fit the schedules.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ._engine.arrays.precision import promote_freely
from ._engine.base.protocol import Schedule as Schedule
from ._engine.base.stateful import (
    StatefulSchedule as StatefulSchedule,
    WrappedSchedule as WrappedSchedule,
)
from ._engine.factories.scheduled import scheduled
from ._names import attributes
from ._schedule_phases import corners, nonzero, phase, positive, scales_at
from ._wrappers.inject import (
    InjectHyperparamsState as InjectHyperparamsState,
    InjectStatefulHyperparamsState as InjectStatefulHyperparamsState,
    inject_hyperparams as inject_hyperparams,
    inject_stateful_hyperparams as inject_stateful_hyperparams,
)


__all__ = [
    "InjectHyperparamsState", "InjectStatefulHyperparamsState", "Schedule",
    "StatefulSchedule",
    "WrappedSchedule", "constant_schedule", "cosine_decay_schedule",
    "cosine_onecycle_schedule", "exponential_decay", "inject_hyperparams",
    "inject_stateful_hyperparams", "join_schedules", "linear_onecycle_schedule",
    "linear_schedule", "piecewise_constant_schedule", "piecewise_interpolate_schedule",
    "polynomial_schedule", "sgdr_schedule", "warmup_constant_schedule",
    "warmup_cosine_decay_schedule", "warmup_exponential_decay_schedule",
]  # fmt: skip

if not TYPE_CHECKING:
    __dir__, __getattr__ = attributes(__name__)


@scheduled
def constant_schedule(value: ArrayLike) -> Schedule:
    """Return the same value at every step; for a scalar count, unchanged.

    value: the value.
    """

    def schedule(count):
        if np.ndim(count) == 0:
            return value
        return jnp.broadcast_to(value, jnp.shape(count))

    return schedule


@scheduled
def linear_schedule(
    init_value: ArrayLike,
    end_value: ArrayLike,
    transition_steps: int,
    transition_begin: int = 0,
) -> Schedule:
    """Interpolate linearly between two values: `polynomial_schedule` with power 1.

    value(t) = I + (E - I) (t - B) / T;  it is I from 0 to B, and E from B + T on

    init_value, end_value: `I` and `E`.
    transition_steps: `T`; if it is not positive the value stays at `I`.
    transition_begin: `B`, the step at which the change starts; negative means 0.
    """
    steps, begin = transition_steps, transition_begin
    return polynomial_schedule(init_value, end_value, 1, steps, begin)


@scheduled
def polynomial_schedule(
    init_value: ArrayLike,
    end_value: ArrayLike,
    power: ArrayLike,
    transition_steps: int,
    transition_begin: int = 0,
) -> Schedule:
    """Interpolate between two values by a power of the remaining steps.

    value(t) = (I - E) (1 - (t - B) / T)^power + E
    it is I from 0 to B, and E from B + T on

    init_value, end_value: `I` and `E`.
    power: positive; above 1 the change is fastest at the beginning.
    transition_steps: `T`; if it is not positive the value stays at `I`.
    transition_begin: `B`, the step at which the change starts; negative means 0.
    """
    positive("transition_begin", transition_begin)
    if not positive("transition_steps", transition_steps):
        return constant_schedule(init_value)

    def schedule(count):
        change = init_value - end_value  # pyright: ignore[reportOperatorIssue] (bools)
        t, steps = phase(count, transition_begin, transition_steps)
        remaining = jnp.where(t < steps, 1 - t / steps, 1)
        value = change * remaining**power + end_value
        return jnp.where(t < steps, value, end_value)

    return promote_freely(schedule)


@scheduled
def exponential_decay(
    init_value: ArrayLike,
    transition_steps: int,
    decay_rate: ArrayLike,
    transition_begin: int = 0,
    staircase: bool = False,
    end_value: ArrayLike | None = None,
) -> Schedule:
    """Multiply by a rate every `T` steps, continuously or as a staircase.

    value(t) = I rate^((t - B) / T)   for t >= B; floor((t - B) / T) if `staircase`
    value(0) = I, until B;  it tends to 0 (grows if rate > 1)
    with `E`, max(value, E) if rate < 1, and min(value, E) otherwise

    init_value, end_value: `I` and `E`.
    transition_steps, transition_begin: `T` and `B`, as in `polynomial_schedule`.
    decay_rate: the rate; if it is 0 the value stays at `I`; ValueError if negative.
    staircase: whether the value only changes every `T` steps.
    """
    positive("transition_begin", transition_begin)
    decays = positive("decay_rate", decay_rate, "not be negative")
    if not (positive("transition_steps", transition_steps) and decays):
        return constant_schedule(init_value)

    def schedule(count):
        t, steps = phase(count, transition_begin, transition_steps)
        # Not the floor of `t / steps`, which may round to just below an integer.
        exponent = t // steps / 1 if staircase else t / steps
        value = init_value * jnp.power(nonzero(decay_rate), exponent)
        if end_value is None:
            return value
        past = jnp.where(jnp.less(decay_rate, 1), value < end_value, value > end_value)
        # Masked again, because the derivative of an overflow would be NaN.
        power = jnp.power(nonzero(decay_rate), jnp.where(past, 0, exponent))
        return jnp.where(past, end_value, init_value * power)

    return promote_freely(schedule)


@scheduled
def piecewise_constant_schedule(
    init_value: ArrayLike, boundaries_and_scales: dict[int, float] | None = None
) -> Schedule:
    """Scale the value at given steps.

    value(t) = I times all scales with boundary <= t
    value(0) = I;  from the last boundary on, I times all scales

    init_value: `I`.
    boundaries_and_scales: `{boundary: scale}`, in any order; ValueError for a scale
        that is negative, TypeError for a boundary that is not a number.
    """
    scales = scales_at(boundaries_and_scales)

    def schedule(count):
        value = constant_schedule(jnp.asarray(1.0 * init_value))(count)
        for boundary, scale in sorted(scales.items()):
            value = jnp.where(count < boundary, value, scale * value)
        return value

    return promote_freely(schedule)


@scheduled
def piecewise_interpolate_schedule(
    interpolate_type: str,
    init_value: ArrayLike,
    boundaries_and_scales: dict[int, float] | None = None,
) -> Schedule:
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
    scales = scales_at(boundaries_and_scales)
    steps = sorted(scales)
    return _interpolate(interpolate_type, init_value, steps, [scales[i] for i in steps])


@scheduled
def cosine_decay_schedule(
    init_value: ArrayLike,
    decay_steps: int,
    alpha: ArrayLike = 0.0,
    exponent: ArrayLike = 1.0,
) -> Schedule:
    """Decay along a half-cosine (Loshchilov & Hutter, arXiv:1608.03983).

    value(t) = I ((1 - alpha) ((1 + cos(pi t / T)) / 2)^exponent + alpha)   for t <= T
    value(0) = I;  value(t) = alpha I   for t >= T

    init_value, decay_steps: `I`, and `T`, positive; otherwise ValueError.
    alpha: the final value as a fraction of `I`.
    exponent: positive; above 1 the decay is faster at the beginning.
    """
    positive("decay_steps", decay_steps, "be positive")

    def schedule(count):
        steps = 1.0 * nonzero(decay_steps)  # a Python int may exceed all integer dtypes
        wave = 0.5 * (1 + jnp.cos(jnp.pi * jnp.clip(count, 0, steps) / steps))
        power = jnp.where(wave > 0, wave, 1) ** exponent
        decayed = jnp.where(wave > 0, power, 0)
        return init_value * ((1 - alpha) * decayed + alpha)

    return promote_freely(schedule)


@scheduled
@promote_freely
def cosine_onecycle_schedule(
    transition_steps: int,
    peak_value: ArrayLike,
    pct_start: float = 0.3,
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
) -> Schedule:
    """Rise to a peak and decay to almost 0 (Smith & Topin, arXiv:1708.07120).

    half-cosines from I = P / div_factor at 0 to P at floor(pct_start T), and on to
    E = I / final_div_factor at T and later

    transition_steps, peak_value: `T`, positive, and `P`.
    pct_start: the fraction of rising steps, from 0 to 1; not a percentage.
    div_factor, final_div_factor: positive; ValueError for arguments out of range.
    """
    steps = corners(transition_steps, [pct_start], div_factor, final_div_factor)
    scales = [div_factor, 1.0 / (div_factor * final_div_factor)]
    return _interpolate("cosine", peak_value / div_factor, steps, scales)


@scheduled
@promote_freely
def linear_onecycle_schedule(
    transition_steps: int,
    peak_value: ArrayLike,
    pct_start: float = 0.3,
    pct_final: float = 0.85,
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
) -> Schedule:
    """Rise to a peak, return, and anneal (Smith & Topin, arXiv:1708.07120).

    linear from I = P / div_factor at 0 to P at floor(pct_start T), back to I at
    floor(pct_final T), and on to E = I / final_div_factor at T and later

    transition_steps, peak_value: `T`, positive, and `P`.
    pct_start, pct_final: fractions of the steps, from 0 to 1, in this order.
    div_factor, final_div_factor: positive; ValueError for arguments out of range.
    """
    fractions = [pct_start, pct_final]
    steps = corners(transition_steps, fractions, div_factor, final_div_factor)
    scales = [div_factor, 1.0 / div_factor, 1.0 / final_div_factor]
    return _interpolate("linear", peak_value / div_factor, steps, scales)


@scheduled
def join_schedules(
    schedules: Sequence[Schedule], boundaries: Sequence[int]
) -> Schedule:
    """Run schedules one after another; each counts from its own boundary.

    value(t) = schedule_i(t - b_i) for the last i with b_i <= t, where b_0 = 0
    value(0) = schedule_0(0);  after the last boundary the last schedule continues

    schedules: functions of the step; otherwise TypeError.
    boundaries: the step at which each schedule but the first takes over; ValueError
        unless there is one fewer than schedules.
    """
    schedules = list(schedules)
    starts = [None] if boundaries is None else list(boundaries)
    if not all(map(callable, schedules)):
        raise TypeError("`schedules` must be functions; see `constant_schedule`")
    for start in starts:
        positive("boundaries", start)
    if len(starts) != len(schedules) - 1:
        raise ValueError(
            "`boundaries` must have the step at which each schedule but the first takes"
            f" over, but has {len(starts)} for {len(schedules)} schedules"
        )

    def schedule(count):
        value = schedules[0](count)
        for start, later in zip(starts, schedules[1:], strict=True):
            value = jnp.where(count < start, value, later(count - start))
        return value

    return promote_freely(schedule)


@scheduled
def sgdr_schedule(cosine_kwargs: Iterable[dict[str, ArrayLike]]) -> Schedule:
    """Cosine decay with warm-up and restarts (Loshchilov & Hutter, arXiv:1608.03983).

    value(t) = cycle_i(t - S_i), with S_i the sum of the `decay_steps` before cycle i
    it starts at the first initial value, and ends at the last end value

    cosine_kwargs: for each cycle, the arguments of `warmup_cosine_decay_schedule`.
    """
    cycles: list = list(cosine_kwargs)
    schedules = [warmup_cosine_decay_schedule(**cycle) for cycle in cycles]
    ends = accumulate(cycle["decay_steps"] for cycle in cycles[:-1])
    return join_schedules(schedules, list(ends))


@scheduled
def warmup_constant_schedule(
    init_value: ArrayLike, peak_value: ArrayLike, warmup_steps: int
) -> Schedule:
    """Warm up linearly, then stay constant.

    value(t) = I + (P - I) t / W;  it is I at 0, and P from W on

    init_value, peak_value: `I` and `P`.
    warmup_steps: `W`; for 0 it starts at `P`; ValueError if negative.
    """
    return _warm_up(init_value, peak_value, warmup_steps, constant_schedule(peak_value))


@scheduled
@promote_freely
def warmup_cosine_decay_schedule(
    init_value: ArrayLike,
    peak_value: ArrayLike,
    warmup_steps: int,
    decay_steps: int,
    end_value: ArrayLike = 0.0,
    exponent: ArrayLike = 1.0,
) -> Schedule:
    """Warm up linearly, then decay along a half-cosine.

    value(t) = I + (P - I) t / W   for t <= W
    value(t) = E + (P - E) ((1 + cos(pi (t - W) / (D - W))) / 2)^exponent   for t <= D
    value(0) = I;  value(W) = P;  value(t) = E   for t >= D (0 if `P` is 0)

    init_value, peak_value, end_value: `I`, `P` and `E`.
    warmup_steps: `W`; for 0 it starts at `P`; ValueError if negative.
    decay_steps: `D`, warm-up included; ValueError if not above `W`.
    exponent: positive; above 1 the decay is faster at the beginning.
    """
    positive("decay_steps", decay_steps)
    steps = decay_steps - warmup_steps
    positive("decay_steps - warmup_steps", steps, "be positive")
    alpha = end_value / nonzero(peak_value)
    decay = cosine_decay_schedule(peak_value, steps, alpha, exponent)
    return _warm_up(init_value, peak_value, warmup_steps, decay)


@scheduled
def warmup_exponential_decay_schedule(
    init_value: ArrayLike,
    peak_value: ArrayLike,
    warmup_steps: int,
    transition_steps: int,
    decay_rate: ArrayLike,
    transition_begin: int = 0,
    staircase: bool = False,
    end_value: ArrayLike | None = None,
) -> Schedule:
    """Warm up linearly, then follow `exponential_decay`.

    value(t) = I + (P - I) t / W   for t <= W
    value(t) = P rate^((t - W - B) / T)   for t >= W + B
    value(0) = I;  value(W) = P, until W + B;  it stops at `E`, or tends to 0

    init_value, peak_value: `I` and `P`.
    warmup_steps: `W`; for 0 it starts at `P`; ValueError if negative.
    transition_steps, transition_begin: `T` and `B`, counted from the end of warm-up.
    decay_rate: the rate; if it is 0 the value stays at `P`; ValueError if negative.
    staircase: whether the value only changes every `T` steps.
    end_value: `E`, where the decay stops; no limit if `None`.
    """
    decay = exponential_decay(
        peak_value, transition_steps, decay_rate, transition_begin, staircase, end_value
    )
    return _warm_up(init_value, peak_value, warmup_steps, decay)


def _warm_up(init_value, peak_value, warmup_steps, later):
    if not positive("warmup_steps", warmup_steps, "not be negative"):
        return later
    rise = linear_schedule(init_value, peak_value, warmup_steps)
    return join_schedules([rise, later], [warmup_steps])


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

    return promote_freely(jnp.vectorize(schedule))
