"""Learning rates with a schedule: what they count, and their course in a run."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._engine.inspect.components import Component
from .stages import Place, Stage, accumulated, sampled


# Points at which a schedule is read within a run, and how many runs beyond its end.
_POINTS, _BEYOND = 257, 2.0 ** np.arange(1, 24)
_LAST = 2**31 - 2
# A change by less than this part of the peak counts as none.
SAME = 1e-4


@dataclass(frozen=True)
class Rate:
    """A learning rate with a schedule.

    first: its count before the run.
    every: the calls of `update` for one count.
    divides: the accumulation behind it whose micro-steps it counts; 1 if there is none.
    """

    stage: Stage
    paths: tuple[str, ...]
    first: int
    every: int
    divides: int

    def within(self, calls: int) -> "Curve | None":
        """Its course in a run of so many calls; `None` if it has no values."""
        length = max(calls // self.every, 1)
        last = self.first + length
        counts = np.unique(np.linspace(self.first, last, _POINTS).astype(int))
        far = np.minimum(last * _BEYOND, _LAST).astype(int)
        found = sampled(self.stage.rate, [*counts, *far])
        if found is None or not np.isfinite(found).all():
            return None
        whole, n = np.abs(found), len(counts)
        peak, final = whole.max(), whole[-1]
        is_falling = np.diff(whole[whole.argmax() :]) <= SAME * peak
        moves = np.flatnonzero(np.abs(whole[:n] - final) > SAME * peak)
        after = moves[-1] + 1 if len(moves) else 0
        lasts = counts[after] - self.first if after < n else length + 1
        is_decaying = whole.argmax() < n and is_falling.all()
        is_decaying &= final < (1 - SAME) * peak
        ends = float(peak), float(final)
        return Curve(self, calls, length, lasts, whole[:n], *ends, bool(is_decaying))


@dataclass(frozen=True)
class Curve:
    """The course of a learning rate in a run.

    calls, length: the calls of `update` in the run, and the steps.
    lasts: after how many it stays at its final size; more than all if it does not.
    values: its sizes in the run.
    peak, final: the largest size, and that which it approaches, beyond the run, too.
    is_decaying: whether it only falls after its peak, which is in the run.
    """

    rate: Rate
    calls: int
    length: int
    lasts: int
    values: np.ndarray
    peak: float
    final: float
    is_decaying: bool

    @property
    def paths(self) -> tuple[str, ...]:
        return self.rate.paths


def rates(places: list[Place], states: Mapping[int, Any]) -> Iterator[Rate]:
    """The learning rates with a schedule that users chose, and their parameters."""
    for at in places:
        if (
            not callable(at.stage.rate)
            or not _is_chosen(at.stage)
            or at.track.is_frozen
        ):
            continue
        within = _counted_within(at.stage)
        inside = {x: k for y in at.track.stages for x, k in _accumulations(y.around)}
        behind = [k for x, k in inside.items() if x not in within]
        counting = (*at.stage.around[: len(within) + 1], at.stage.part)
        first = _count([states.get(id(x)) for x in counting])
        every = math.prod(k for _, k in _accumulations(within)) or 1
        yield Rate(at.stage, at.paths, first, every, max(behind, default=1))


def _is_chosen(stage: Stage) -> bool:
    """Whether the user chose the schedule, rather than that of an optimizer."""
    if stage.owner in (None, stage.part):
        return True
    given = stage.owner.recipe.given
    nested = [y for x in given.values() if isinstance(x, dict) for y in x.values()]
    is_any = any(map(callable, [*given.values(), *nested]))
    return is_any or any(k.startswith("warmup") for k in given)


def _counted_within(stage: Stage) -> tuple[Component, ...]:
    """The parts around what counts the steps of a schedule."""
    for n, part in enumerate(stage.around):
        if getattr(part.state, "hyperparams_states", None):
            return stage.around[:n]  # it is injected
    return stage.around


def _accumulations(parts: tuple[Component, ...]) -> list[tuple[Component, int]]:
    found = [(part, accumulated(part)) for part in parts]
    return [(part, k) for part, k in found if k is not None and k != 1]


def _count(states: list) -> int:
    """The steps so far, as the innermost of some states counts them."""
    names = ("count", "step_count", "gradient_step")
    # Every tuple has a method `count`.
    rows = [(x, k) for x in states for k in names if k in getattr(x, "_fields", ())]
    return int(getattr(*rows[-1])) if rows else 0
