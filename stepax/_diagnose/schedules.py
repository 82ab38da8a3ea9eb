"""Schedules: what they count, and how they fit to the length of a run."""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from .._engine.inspect.components import Component
from .findings import Problem
from .stages import Stage, View, accumulated, sampled
from .traits import is_frozen, rate_of


# Points at which a schedule is read within a run, and how many runs beyond its end.
_POINTS, _BEYOND = 257, tuple(2.0**n for n in range(1, 24))
_LAST = 2**31 - 2
# A change by less than this part of the peak counts as none.
_SAME = 1e-4


class Rate(NamedTuple):
    """A learning rate with a schedule, for some parameters.

    first: its count before the run.
    every: the calls for one count.
    divides: the accumulation behind it whose micro-steps it counts; 1 if there is none.
    """

    stage: Stage
    schedule: Callable
    paths: tuple[str, ...]
    first: int
    every: int
    divides: int

    def within(self, steps: int) -> "Curve | None":
        """Its values in a run, and beyond."""
        last = self.first + max(steps // self.every, 1)
        counts = np.unique(np.linspace(self.first, last, _POINTS).astype(int))
        far = [min(int(last * x), _LAST) for x in _BEYOND]
        values = sampled(self.schedule, [*counts, *far])
        if values is None or not np.isfinite(values).all():
            return None
        return Curve(counts, np.abs(values[: len(counts)]), np.abs(values))


class Curve(NamedTuple):
    """A schedule in a run.

    counts, values: at which counts it was read in the run, and the rates there.
    whole: the rates of the run and those beyond its end.
    """

    counts: np.ndarray
    values: np.ndarray
    whole: np.ndarray

    @property
    def last(self) -> int:
        return int(self.counts[-1])

    @property
    def length(self) -> int:
        return int(self.counts[-1] - self.counts[0])

    @property
    def peak(self) -> float:
        return float(self.whole.max())

    @property
    def final(self) -> float:
        """The value that it approaches."""
        return float(self.whole[-1])

    @property
    def is_decaying(self) -> bool:
        """Whether it only falls after its peak, which is in the run."""
        at = int(self.whole.argmax())
        falls = np.diff(self.whole[at:]) <= _SAME * self.peak
        is_lower = self.final < (1 - _SAME) * self.peak
        return at < len(self.values) and bool(falls.all()) and is_lower

    @property
    def end(self) -> int:
        """The first count from which it stays at its final value."""
        moves = np.flatnonzero(np.abs(self.values - self.final) > _SAME * self.peak)
        after = moves[-1] + 1 if len(moves) else 0
        return int(self.counts[after]) if after < len(self.counts) else self.last + 1


def _rates(view: View) -> Iterator[Rate]:
    for track, _, stage, _ in view.placed():
        schedule = rate_of(stage)
        is_frozen_track = any(map(is_frozen, track.stages))
        if not callable(schedule) or not _is_chosen(stage) or is_frozen_track:
            continue
        outside = _counted_within(stage)
        inside = {x: k for y in track.stages for x, k in _accumulations(y.around)}
        behind = [k for x, k in inside.items() if x not in outside]
        counting = (*stage.around[: len(outside) + 1], stage.part)
        every = math.prod(k for _, k in _accumulations(outside)) or 1
        first = view.count(counting)
        yield Rate(stage, schedule, track.paths, first, every, max(behind, default=1))


def _decaying(view: View) -> Iterator[tuple[Rate, Curve]]:
    for rate in _rates(view):
        curve = rate.within(view.steps)
        if curve is not None and curve.is_decaying:
            yield rate, curve


def _is_chosen(stage: Stage) -> bool:
    """Whether the user chose the schedule, rather than that of an optimizer."""
    if stage.owner is None or stage.owner is stage.part:
        return True
    given = stage.owner.recipe.given
    values = [
        y for x in given.values() for y in (x.values() if isinstance(x, dict) else [x])
    ]
    return any(map(callable, values)) or any(k.startswith("warmup") for k in given)


def _counted_within(stage: Stage) -> tuple[Component, ...]:
    """The parts around what counts the steps of a schedule."""
    for n, part in enumerate(stage.around):
        if getattr(part.state, "hyperparams_states", None):
            return stage.around[:n]  # it is injected
    return stage.around


def _accumulations(parts: tuple[Component, ...]) -> list[tuple[Component, int]]:
    found = [(part, accumulated(part)) for part in parts]
    return [(part, k) for part, k in found if k is not None and k != 1]


def first_step_zero(view: View) -> Iterator[Problem]:
    """Schedules that start at 0."""
    for rate in _rates(view):
        values = sampled(rate.schedule, [rate.first, rate.first + 1])
        if values is not None and values[0] == 0 != values[1]:
            message = f"{rate.stage} is 0 in the first step, whose gradient is lost"
            yield Problem(message, rate.paths)


def in_micro_steps(view: View) -> Iterator[Problem]:
    """Schedules outside of an accumulation."""
    for rate in _rates(view):
        if rate.divides != 1:
            times = f"{rate.divides} times" if rate.divides else "several times"
            what = f"counts calls of `update`, {times} as many as steps"
            yield Problem(
                f"{rate.stage} is outside of the accumulation: it {what}", rate.paths
            )


def needs_calls(view: View) -> Iterator[Problem]:
    """Schedules inside of an accumulation that are as long as the calls."""
    for rate, curve in _decaying(view):
        if rate.every == 1 or curve.end <= curve.last:
            continue
        # One without an end, such as 1 / t, is not too long.
        of_calls = rate.within(view.steps * rate.every)
        if of_calls is not None and of_calls.end <= of_calls.last:
            what = f"{view.steps} calls of `update` are {curve.length} steps"
            cure = f"make it {curve.length} steps long"
            yield Problem(
                f"{rate.stage} is longer than the run: {what}", rate.paths, cure
            )


def ends_early(view: View) -> Iterator[Problem]:
    """Schedules that reach nearly 0 before the end of a run."""
    for rate, curve in _decaying(view):
        lasts = curve.end - rate.first
        if curve.final < 0.01 * curve.peak and lasts < 0.95 * curve.length:
            what = f"is at its end after {lasts} of {curve.length} steps"
            cure = f"make it {curve.length} steps long, or end above 0"
            yield Problem(
                f"{rate.stage} {what}, and nearly 0 from then on", rate.paths, cure
            )


def never_ends(view: View) -> Iterator[Problem]:
    """Schedules that are far from their end when a run ends."""
    for rate, curve in _decaying(view):
        gone = (curve.peak - curve.values[-1]) / (curve.peak - curve.final)
        if gone < 0.5:
            message = f"{rate.stage} has gone {gone:.0%} of its way when the run ends"
            cure = f"make it {curve.length} steps long"
            yield Problem(message, rate.paths, cure)


def long_warmup(view: View) -> Iterator[Problem]:
    """Warm-ups that last longer than a run."""
    for rate in _rates(view):
        curve = rate.within(view.steps)
        if curve is None or (np.diff(curve.values) < 0).any():
            continue
        last = curve.values[-1]
        if curve.values[0] < last < (1 - _SAME) * curve.peak:
            what = f"rises until the run ends, at {last / curve.peak:.0%} of its peak"
            yield Problem(f"{rate.stage} {what}", rate.paths)
