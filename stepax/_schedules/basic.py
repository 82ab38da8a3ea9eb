"""Constants, powers and exponentials of the step count, and joined schedules."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from .._engine import rules as rx
from .._engine.functions.calls import refuse_uncalled
from .lengths import after, is_zero, nonzero, phase, positive


@rx.scheduled
def constant_schedule(value: ArrayLike) -> rx.Schedule:
    """Return the same value at every step; for a scalar count, unchanged.

    value: the value.
    """

    def schedule(count):
        if np.ndim(count) == 0:
            return value
        return jnp.broadcast_to(value, jnp.shape(count))

    return schedule


@rx.scheduled
def linear_schedule(
    init_value: ArrayLike,
    end_value: ArrayLike,
    transition_steps: rx.Whole,
    transition_begin: rx.Whole = 0,
) -> rx.Schedule:
    """Interpolate linearly between two values: `polynomial_schedule` with power 1.

    value(t) = I + (E - I) (t - B) / T;  it is I from 0 to B, and E from B + T on

    init_value, end_value: `I` and `E`.
    transition_steps: `T`; if it is not positive the value stays at `I`.
    transition_begin: `B`, the step at which the change starts; negative means 0.
    """
    steps, begin = transition_steps, transition_begin
    return polynomial_schedule(init_value, end_value, 1, steps, begin)


@rx.scheduled
def polynomial_schedule(
    init_value: ArrayLike,
    end_value: ArrayLike,
    power: ArrayLike,
    transition_steps: rx.Whole,
    transition_begin: rx.Whole = 0,
) -> rx.Schedule:
    """Interpolate between two values by a power of the remaining steps.

    value(t) = (I - E) (1 - (t - B) / T)^power + E
    it is I from 0 to B, and E from B + T on

    init_value, end_value: `I` and `E`.
    power: positive; above 1 the change is fastest at the beginning; if 0, the value
        stays at `I`.
    transition_steps: `T`; if it is not positive the value stays at `I`.
    transition_begin: `B`, the step at which the change starts; negative means 0.
    """
    positive("transition_begin", transition_begin)
    if not positive("transition_steps", transition_steps) or is_zero(power):
        return constant_schedule(init_value)

    def schedule(count):
        change = init_value - end_value  # pyright: ignore[reportOperatorIssue] (bools)
        t, steps = phase(count, transition_begin, transition_steps)
        remaining = jnp.where(t < steps, 1 - t / steps, 1)
        value = change * remaining**power + end_value
        return jnp.where(t < steps, value, after(power, init_value, end_value))

    return rx.promote_freely(schedule)


@rx.scheduled
def exponential_decay(
    init_value: ArrayLike,
    transition_steps: rx.Whole,
    decay_rate: ArrayLike,
    transition_begin: rx.Whole = 0,
    staircase: bool = False,
    end_value: ArrayLike | None = None,
) -> rx.Schedule:
    """Multiply by a decay rate every `T` steps, continuously or as a staircase.

    value(t) = I rate^((t - B) / T)   for t >= B; floor((t - B) / T) if `staircase`
    value(0) = I, until B;  it tends to 0 (grows if rate > 1)
    with `E`, max(value, E) if rate < 1, and min(value, E) otherwise

    init_value, end_value: `I` and `E`.
    transition_steps, transition_begin: `T` and `B`, as in `polynomial_schedule`.
    decay_rate: the decay rate; if 0, the value stays at `I`; ValueError if negative
        without `staircase`, as it has no root.
    staircase: whether the value only changes every `T` steps.
    """
    positive("transition_begin", transition_begin)
    positive("decay_rate", decay_rate, "" if staircase else "not be negative")
    if not positive("transition_steps", transition_steps) or is_zero(decay_rate):
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

    return rx.promote_freely(schedule)


@rx.scheduled
def cosine_decay_schedule(
    init_value: ArrayLike,
    decay_steps: rx.Whole,
    alpha: ArrayLike = 0.0,
    exponent: ArrayLike = 1.0,
) -> rx.Schedule:
    """Decay along a half-cosine (Loshchilov & Hutter, arXiv:1608.03983).

    value(t) = I ((1 - alpha) ((1 + cos(pi t / T)) / 2)^exponent + alpha)   for t <= T
    value(0) = I;  value(t) = alpha I   for t >= T

    init_value, decay_steps: `I`, and `T`, positive; otherwise ValueError.
    alpha: the final value as a fraction of `I`.
    exponent: positive; above 1 the decay is faster at the beginning; if 0, the value
        stays at `I`.
    """
    positive("decay_steps", decay_steps, "be positive")
    if is_zero(exponent):
        return constant_schedule(init_value)

    def schedule(count):
        steps = 1.0 * nonzero(decay_steps)  # a Python int may exceed all integer dtypes
        wave = 0.5 * (1 + jnp.cos(jnp.pi * jnp.clip(count, 0, steps) / steps))
        power = jnp.where(wave > 0, wave, 1) ** exponent
        decayed = jnp.where(wave > 0, power, after(exponent, 1, 0))
        return init_value * ((1 - alpha) * decayed + alpha)

    return rx.promote_freely(schedule)


@rx.scheduled
def join_schedules(
    schedules: Sequence[rx.Schedule], boundaries: Sequence[int]
) -> rx.Schedule:
    """Run schedules one after another; each counts from its own boundary.

    value(t) = schedule_i(t - b_i) for the last i with b_i <= t, where b_0 = 0
    value(0) = schedule_0(0);  after the last boundary the last schedule continues

    schedules: functions of the step; otherwise TypeError.
    boundaries: the step at which each schedule but the first takes over.  More are
        ignored, as is the end of the last schedule; ValueError if there are too few.
    """
    if callable(schedules):
        raise TypeError(
            "`schedules` of `join_schedules` is one schedule, expected a list of them"
        )
    schedules = list(schedules)
    starts = [None] if boundaries is None else list(boundaries)
    for i, x in enumerate(schedules):
        if not callable(x):
            raise TypeError(
                f"`schedules[{i}]` is {rx.errors.describe(x)}, expected a function of "
                f"the step, such as `constant_schedule({x!r:.20})`"
            )
        refuse_uncalled(f"`schedules[{i}]`", x)
    for start in starts:
        positive("boundaries", start)
    if not schedules or len(starts) < len(schedules) - 1:
        raise ValueError(
            "`boundaries` must have the step at which each schedule but the first takes"
            f" over, but has {len(starts)} for {len(schedules)} schedules"
        )

    def schedule(count):
        value = schedules[0](count)
        for start, later in zip(starts, schedules[1:], strict=False):
            value = jnp.where(count < start, value, later(count - start))
        return value

    return rx.promote_freely(schedule)
