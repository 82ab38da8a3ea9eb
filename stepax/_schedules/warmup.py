"""Schedules that begin with a linear warm-up."""

from collections.abc import Iterable
from itertools import accumulate

from jax.typing import ArrayLike

from .._engine.arrays.precision import promote_freely
from .._engine.base import Schedule
from .._engine.factories.scheduled import scheduled
from .basic import (
    constant_schedule,
    cosine_decay_schedule,
    exponential_decay,
    join_schedules,
    linear_schedule,
)
from .lengths import nonzero, positive


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
    of = "decay_steps - warmup_steps"
    positive(of, steps, "be positive", "; `decay_steps` includes the warm-up")
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
    decay_rate: the decay rate; if 0, the value stays at `P`; ValueError if negative.
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
