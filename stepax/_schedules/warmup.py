"""Schedules that begin with a linear warm-up, and schedules of long runs.

Lengths in those of long runs are numbers of steps or, with `total_steps`, fractions of
it: floats between 0 and 1.  The integer 1 is one step; the float 1.0 is an error,
because it might mean all steps.  A phase ends at the step nearest to its exact end,
with halves rounded up, so that phases whose fractions sum to 1 end at the total.
Traced floats are fractions below 1, too, and otherwise steps; values are NaN for a
fraction without a total.
"""

from collections.abc import Iterable
from itertools import accumulate

import jax.numpy as jnp
from jax.typing import ArrayLike

from .._engine import rules as rx
from . import basic
from .lengths import ends, is_zero, length, nonzero, positive, wide


@rx.scheduled
def sgdr_schedule(cosine_kwargs: Iterable[dict[str, ArrayLike]]) -> rx.Schedule:
    """Cosine decay with warm-up and restarts (Loshchilov & Hutter, arXiv:1608.03983).

    value(t) = cycle_i(t - S_i), with S_i the sum of the `decay_steps` before cycle i
    it starts at the first initial value, and ends at the last end value

    cosine_kwargs: for each cycle, the arguments of `warmup_cosine_decay_schedule`.
    """
    cycles: list = list(cosine_kwargs)
    schedules = [warmup_cosine_decay_schedule(**cycle) for cycle in cycles]
    ends = accumulate(cycle["decay_steps"] for cycle in cycles[:-1])
    return basic.join_schedules(schedules, list(ends))


@rx.scheduled
def warmup_constant_schedule(
    init_value: ArrayLike, peak_value: ArrayLike, warmup_steps: int
) -> rx.Schedule:
    """Warm up linearly, then stay constant.

    value(t) = I + (P - I) t / W;  it is I at 0, and P from W on

    init_value, peak_value: `I` and `P`.
    warmup_steps: `W`; for 0 it starts at `P`; ValueError if negative.
    """
    positive("warmup_steps", warmup_steps, "not be negative")
    later = basic.constant_schedule(peak_value)
    return _warm_up(init_value, peak_value, warmup_steps, later)


@rx.scheduled
@rx.promote_freely
def warmup_cosine_decay_schedule(
    init_value: ArrayLike,
    peak_value: ArrayLike,
    warmup_steps: rx.Whole,
    decay_steps: rx.Whole,
    end_value: ArrayLike = 0.0,
    exponent: ArrayLike = 1.0,
) -> rx.Schedule:
    """Warm up linearly, then decay along a half-cosine.

    value(t) = I + (P - I) t / W   for t <= W
    value(t) = E + (P - E) ((1 + cos(pi (t - W) / (D - W))) / 2)^exponent   for t <= D
    value(0) = I;  value(W) = P;  value(t) = E   for t >= D (0 if `P` is 0)

    init_value, peak_value, end_value: `I`, `P` and `E`.
    warmup_steps: `W`; for 0 it starts at `P`, and if negative, as much later.
    decay_steps: `D`, warm-up included; ValueError if not above `W`.
    exponent: positive; above 1 the decay is faster at the beginning.
    """
    positive("decay_steps", decay_steps)
    steps = decay_steps - warmup_steps
    of = "decay_steps - warmup_steps"
    positive(of, steps, "be positive", "; `decay_steps` includes the warm-up")
    alpha = end_value / nonzero(peak_value)
    decay = basic.cosine_decay_schedule(peak_value, steps, alpha, exponent)
    return _warm_up(init_value, peak_value, warmup_steps, decay)


@rx.scheduled
def warmup_exponential_decay_schedule(
    init_value: ArrayLike,
    peak_value: ArrayLike,
    warmup_steps: rx.Whole,
    transition_steps: rx.Whole,
    decay_rate: ArrayLike,
    transition_begin: rx.Whole = 0,
    staircase: bool = False,
    end_value: ArrayLike | None = None,
) -> rx.Schedule:
    """Warm up linearly, then follow `exponential_decay`.

    value(t) = I + (P - I) t / W   for t <= W
    value(t) = P rate^((t - W - B) / T)   for t >= W + B
    value(0) = I;  value(W) = P, until W + B;  it stops at `E`, or tends to 0

    init_value, peak_value: `I` and `P`.
    warmup_steps: `W`; for 0 it starts at `P`, and if negative, as much later.
    transition_steps, transition_begin: `T` and `B`, counted from the end of warm-up.
    decay_rate: the decay rate; if 0, the value stays at `P`; ValueError if negative
        without `staircase`.
    staircase: whether the value only changes every `T` steps.
    end_value: `E`, where the decay stops; no limit if `None`.
    """
    decay = basic.exponential_decay(
        peak_value, transition_steps, decay_rate, transition_begin, staircase, end_value
    )
    return _warm_up(init_value, peak_value, warmup_steps, decay)


def _warm_up(init_value, peak_value, warmup_steps, later):
    positive("warmup_steps", warmup_steps)
    if is_zero(warmup_steps):
        return later
    rise = basic.linear_schedule(init_value, peak_value, warmup_steps)
    return basic.join_schedules([rise, later], [warmup_steps])


# The remaining part of a decay, as a function of the completed part.
_SHAPES = {
    "linear": lambda s: 1 - s,
    "sqrt": lambda s: 1 - jnp.sqrt(s),
    "cosine": lambda s: (1 + jnp.cos(jnp.pi * s)) / 2,
}


@rx.scheduled
@rx.promote_freely
def warmup_stable_decay_schedule(
    peak_value: ArrayLike,
    warmup_steps: float,
    stable_steps: float | None,
    decay_steps: float,
    init_value: ArrayLike = 0.0,
    end_value: ArrayLike = 0.0,
    *,
    shape: str = "linear",
    total_steps: rx.Whole | None = None,
) -> rx.Schedule:
    """Warm up linearly, stay, then decay (Hu et al., 2024, arXiv:2404.06395).

    value(t) = I + (P - I) t / W   for t < W;   P   for W <= t <= W + S
    value(t) = E + (P - E) left(s),   s = (t - W - S) / D   from there to W + S + D
    left(s) = 1 - s,   1 - sqrt(s)   or   (1 + cos(pi s)) / 2
    value(0) = I;  value(W) = P;  it is E from W + S + D on

    peak_value, init_value, end_value: `P`, `I` and `E`.
    warmup_steps, stable_steps, decay_steps: `W`, `S` and `D`, >= 0: steps, or fractions
        of `total_steps` as floats between 0 and 1; `S` takes the rest if `None`.
        A phase ends at the nearest step; ValueError for 1.0, which may mean either.
    shape: the shape of the decay, "linear", "sqrt" (Hägele et al., 2024,
        arXiv:2405.18392) or "cosine"; otherwise ValueError.
    total_steps: the total; ValueError if the phases take more, or if it is needed but
        missing.
    """
    if shape not in _SHAPES:
        known = ", ".join(map(repr, _SHAPES))
        raise ValueError(f"`shape` must be one of {known}, not {shape!r}")
    peak, init, end = map(wide, (peak_value, init_value, end_value))
    lengths = {"warmup_steps": warmup_steps, "stable_steps": stable_steps}
    first, second, last = ends(total_steps, **lengths, decay_steps=decay_steps)

    def schedule(count):
        t = jnp.maximum(wide(count), 0)
        rise = _rise(init, peak, t, first)
        fall = _fall(shape, peak, end, t - second, last - second)
        value = jnp.where(t <= second, peak, fall)
        value = jnp.where(t >= last, end, value)
        return jnp.where(t < first, rise, value)

    return rx.promote_freely(schedule)


@rx.scheduled
@rx.promote_freely
def warmup_inverse_sqrt_schedule(
    peak_value: ArrayLike,
    warmup_steps: float,
    init_value: ArrayLike = 0.0,
    *,
    timescale: ArrayLike | None = None,
    total_steps: rx.Whole | None = None,
) -> rx.Schedule:
    """Warm up linearly, then decay by the root of the steps (arXiv:1706.03762).

    value(t) = I + (P - I) t / W   for t < W
    value(t) = P sqrt(K / (K + t - W))   for t >= W;  with K = W it is P sqrt(W / t)
    value(0) = I;  value(W) = P;  it tends to 0

    The Transformer uses P = (W size)^(-1/2), and T5 uses I = P = 0.01 with W = 10,000.

    peak_value, init_value: `P` and `I`.
    warmup_steps: `W`, >= 0: steps, or a fraction of `total_steps` as a float between 0
        and 1, which is rounded; ValueError for 1.0, which may mean either.
    timescale: `K`, in steps, positive; by default `W`, or 1 if that is 0.
    total_steps: the total for a fraction; the decay does not end there.
    """
    steps = length("warmup_steps", warmup_steps, total_steps)
    if timescale is not None:
        positive("timescale", timescale, "be positive")
    peak, init = wide(peak_value), wide(init_value)
    scale = nonzero(steps if timescale is None else timescale)

    def schedule(count):
        t = jnp.maximum(wide(count), 0)
        rise = _rise(init, peak, t, steps)
        fall = peak * jnp.sqrt(scale / (scale + jnp.maximum(t - steps, 0.0)))
        return jnp.where(t < steps, rise, jnp.where(t <= steps, peak, fall))

    return rx.promote_freely(schedule)


@rx.scheduled
@rx.promote_freely
def warmup_cosine_restarts_schedule(
    peak_value: ArrayLike,
    cycle_steps: float,
    warmup_steps: float = 0,
    init_value: ArrayLike = 0.0,
    end_value: ArrayLike = 0.0,
    *,
    factor: ArrayLike = 1.0,
    cycles: int | None = None,
    total_steps: rx.Whole | None = None,
) -> rx.Schedule:
    """Half-cosines, each with a warm-up (Loshchilov & Hutter, arXiv:1608.03983).

    k = floor(t / T),   s = t - k T,   P_k = P factor^k,   I_0 = I, and later I_k = E
    value(t) = I_k + (P_k - I_k) s / W   for s < W
    value(t) = E + (P_k - E) (1 + cos(pi (s - W) / (T - W))) / 2   for W <= s < T
    value(0) = I;  value(k T + W) = P_k;  it is E from the end of the last cycle on

    peak_value, init_value, end_value: `P`, `I` and `E`.
    cycle_steps, warmup_steps: `T`, positive, and `W`, from 0 to `T`: steps, or
        fractions of `total_steps` as floats between 0 and 1, which are rounded;
        ValueError for 1.0, which may mean either, and for values out of range.
    factor: the ratio of each peak to the one before, positive; otherwise ValueError.
    cycles: the number of cycles; endless if `None`.
    total_steps: the total for fractions.
    """
    steps = length("cycle_steps", cycle_steps, total_steps)
    rising = length("warmup_steps", warmup_steps, total_steps)
    positive("cycle_steps", steps, "be positive")
    positive("cycle_steps - warmup_steps", steps - rising, "not be negative")
    positive("factor", factor, "be positive")
    if cycles is not None:
        positive("cycles", cycles, "be positive")
    init, end = wide(init_value), wide(end_value)
    last = None if cycles is None else length("cycles", cycles * steps, None)

    def schedule(count):
        t = jnp.maximum(wide(count), 0)
        k = t // nonzero(steps)
        s = t - k * nonzero(steps)
        peak = wide(peak_value) * jnp.power(wide(factor), 1.0 * k)
        start = jnp.where(k == 0, init, end)
        rise = _rise(start, peak, s, rising)
        fall = _fall("cosine", peak, end, s - rising, steps - rising)
        value = jnp.where(s < rising, rise, jnp.where(s <= rising, peak, fall))
        return value if last is None else jnp.where(t >= last, end, value)

    return rx.promote_freely(schedule)


def _rise(init, peak, t, steps):
    return init + (peak - init) * (t / nonzero(steps))


def _fall(shape, peak, end, t, steps):
    """The value of a decay after `t` of its steps, which is exact from step 1 on."""
    s = t / nonzero(steps)
    # At the ends of the root and outside it has no derivative; callers select other
    # values there.
    s = jnp.where((s <= 0) | (s >= 1), 0.5, s)
    return end + (peak - end) * _SHAPES[shape](s)
