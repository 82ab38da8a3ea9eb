"""Learning rates, constant or with a schedule, signs, weight decay, and clips."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import jax
import numpy as np

from .._engine import rules as rx
from .._engine.factories.argument_checks import unchecked
from .._engine.factories.scheduled import MadeSchedule, is_part_of_step
from .._engine.inspect import Component
from .findings import Found, Problem
from .stages import (
    Place,
    Stage,
    Track,
    accumulated,
    has_schedules,
    product,
    sampled,
    value_of,
)


def rate_never(track: Track) -> Found:
    """Parameters whose update no transformation scales."""
    is_still = product(track.stages) in (None, 0)
    if not track.stages:
        what = "no transformation sees these parameters, so their update is the"
        cure = "use `partition`, with an optimizer or `set_to_zero()` for them"
        yield Problem(f"{what} gradient itself, which raises the loss", cure=cure)
    elif not is_still and not any(x.scales for x in track.stages):
        yield (
            "nothing applies a learning rate or a negative scale, so updates are of "
            "the size of gradients or of order 1, and raise the loss"
        )


def uphill(track: Track) -> Found:
    """Parameters that move along the gradient."""
    # Gradients that are negated before anything else are meant to be climbed.
    is_meant = any(value_of(x.factor) == -1 for x in track.stages[:1])
    is_up = product(track.stages) == 1 and not is_meant
    if is_up and any(x.scales for x in track.stages):
        flips = " and ".join(str(x) for x in track.stages if x.sign == -1)
        what = f"{flips} negate them" if flips else "nothing negates them"
        cure = "negate once: an optimizer already does" if flips else ""
        yield Problem(
            f"updates go along the gradient, and raise the loss: {what}", cure=cure
        )


def rate_twice(track: Track) -> Found:
    """Parameters whose updates two transformations multiply by a learning rate."""
    rates, is_complete = {}, False
    for x in track.stages:
        negates = is_complete and x.scales and x.owner is None and x.sign == -1
        # A factor of 1 or -1 is only a sign, which the rule about signs is for.
        if (x.is_rate or negates) and value_of(x.rate) not in (1, -1):
            # An optimizer may scale in several stages.
            rates[x.owner or x.part] = str(x)
        is_complete = is_complete or (x.owner is not None and x.scales)
    if len(rates) > 1:
        both = " and then ".join(rates.values())
        yield f"{both} each apply a learning rate, and steps are the product"


def never_updated(track: Track, in_run: bool = False) -> Found:
    """Parameters whose updates are always zero, without saying so."""
    zeros = [x for x in track.stages if x.sign == 0]
    # A number may be there only for `init`, unless it is said that the run begins.
    wrong = [x for x in zeros if callable(x.rate) != in_run]
    if wrong and not any(x.is_frozen for x in zeros):
        yield f"{wrong[0]} multiplies updates by 0, so that they never move"


def never_updated_in_run(track: Track) -> Found:
    """Parameters whose learning rate is 0 in a run of a known length."""
    return never_updated(track, in_run=True)


def clip_before_orthogonalizer(at: Place) -> Found:
    """Clipped gradients of matrices whose updates are normalized anyway."""
    clips = [x for x in at.before if "clips norms" in x.traits]
    if clips and at.matrices:
        what = (
            "normalizes them afterwards, and it only weighs gradients in the momentum"
        )
        message = f"does not bound the steps of these matrices: {at.stage} {what}"
        yield Problem(f"{clips[-1]} {message}", at.matrices)


def clip_after_scaling(at: Place) -> Found:
    """A gradient clip that comes after the transformation that scales gradients."""
    scaling = [x for x in at.before if x.normalizes or x.scales]
    # The clip of an optimizer is part of its algorithm.
    if "clips gradients" in at.stage.traits and not at.stage.owner and scaling:
        yield f"{at.stage} comes after {scaling[-1]}: it clips steps, not gradients"


def decay_before_preconditioner(at: Place) -> Found:
    """Decay that a preconditioner divides, as it does gradients."""
    # Some optimizers are defined so.
    scaling = [x for x in at.after if x.normalizes and not x.is_beside(at.stage)]
    if at.stage.name == "add_decayed_weights" and at.stage.decays and scaling:
        yield (
            f"{at.stage} comes before {scaling[0]}, which scales the decay as it does "
            "gradients: L2 regularization, not decoupled weight decay"
        )


def decay_twice(at: Place) -> Found:
    """Parameters on which two decays act."""
    first = [x for x in at.before if x.decays and not x.is_beside(at.stage)]
    if first and at.stage.decays:
        yield f"{first[0]} and {at.stage} both decay these parameters"


def decay_uphill(at: Place) -> Found:
    """Decay that is added to a finished step, and so lets parameters grow."""
    is_added = at.stage.name == "add_decayed_weights" and not at.stage.owner
    is_up = is_added and value_of(at.stage.given["weight_decay"], otherwise=1) > 0
    if is_up and product(at.before) == -1 and product(at.after) == 1:
        what = "comes after the learning rate, so that parameters grow in each step"
        yield f"{at.stage} {what}"


def decay_on_vectors(track: Track) -> Found:
    """Biases, norm scales and scalars that decay."""
    vectors = tuple(path for path, x in track.leaves.items() if len(x.shape) < 2)
    if vectors and any(x.decays for x in track.stages):
        message = "weight decay also acts on biases, norm scales or scalars"
        yield Problem(message, vectors)


# Points at which a schedule is read within a run, and how many runs beyond its end.
_POINTS, _BEYOND = 257, 2.0 ** np.arange(1, 24)
_LAST = 2**31 - 2
# A change by less than this part of the peak counts as none.
_SAME = 1e-4


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
        peak, final = float(whole.max()), float(whole[-1])
        is_falling = np.diff(whole[whole.argmax() :]) <= _SAME * peak
        moves = np.flatnonzero(np.abs(whole[:n] - final) > _SAME * peak)
        after = moves[-1] + 1 if len(moves) else 0
        lasts = counts[after] - self.first if after < n else length + 1
        is_decaying = whole.argmax() < n and is_falling.all()
        is_decaying = bool(is_decaying and final < (1 - _SAME) * peak)
        mine = self.stage, self.paths, self.first, self.every, self.divides
        return Curve(*mine, calls, length, lasts, whole[:n], peak, final, is_decaying)


@dataclass(frozen=True)
class Curve(Rate):
    """The course of a learning rate in a run.

    calls, length: the calls of `update` in the run, and the steps.
    lasts: after how many it stays at its final size; more than all if it does not.
    values: its sizes in the run.
    peak, final: the largest size, and that which it approaches, beyond the run, too.
    is_decaying: whether it only falls after its peak, which is in the run.
    """

    calls: int
    length: int
    lasts: int
    values: np.ndarray
    peak: float
    final: float
    is_decaying: bool


def rates(places: list[Place]) -> Iterator[Rate]:
    """The learning rates with a schedule that users chose, and their parameters."""
    for at in places:
        stage = at.stage
        if at.track.is_frozen or not callable(stage.rate) or not _is_chosen(stage):
            continue
        # What is injected is counted by the part that injects it.
        parts = (*stage.around, stage.part)
        counters = [i for i, x in enumerate(parts) if has_schedules(x)]
        n = min(counters, default=len(stage.around))
        inside = {x: k for y in at.track.stages for x, k in _accumulations(y.around)}
        behind = [k for x, k in inside.items() if x not in parts[:n]]
        every = math.prod(k for _, k in _accumulations(parts[:n])) or 1
        first = _count((*parts[: n + 1], stage.part))
        yield Rate(stage, at.paths, first, every, max(behind, default=1))


def _is_chosen(stage: Stage) -> bool:
    """Whether the user chose the schedule, rather than that of an optimizer."""
    if stage.owner in (None, stage.part):
        return True
    given = stage.owner.call.given
    nested = [y for x in given.values() if isinstance(x, dict) for y in x.values()]
    is_any = any(map(callable, [*given.values(), *nested]))
    return is_any or any(k.startswith("warmup") for k in given)


def _accumulations(parts: tuple[Component, ...]) -> list[tuple[Component, int]]:
    found = [(part, accumulated(part)) for part in parts]
    return [(part, k) for part, k in found if k is not None and k != 1]


def _count(parts: tuple[Component, ...]) -> int:
    """The steps so far, as the innermost of some parts counts them; 0 if unknown."""
    named = [x.state._asdict() for x in parts if rx.errors.fields_of(x.state)]
    names = ("count", "step_count", "gradient_step")
    found = [fields[k] for fields in named for k in names if k in fields]
    return value_of(found[-1], otherwise=0) if found else 0


def first_step_zero(rate: Rate) -> Found:
    """Schedules that start at 0."""
    values = sampled(rate.stage.rate, [rate.first, rate.first + 1])
    if values is not None and values[0] == 0 != values[1]:
        yield f"{rate.stage} is 0 in the first step, whose gradient is lost"


def part_of_step(rate: Rate) -> Found:
    """Schedules whose number of steps is below 1."""
    for made in _made(rate.stage.rate):
        parameters = made.call.bound.signature.parameters
        for key, x in made.arguments.items():
            if parameters[key].annotation is int and is_part_of_step(x):
                what = f"`{key}` of `{made.__name__}` is {x}, less than one step"
                yield f"{rate.stage} has a schedule in which {what}"


def too_many_boundaries(rate: Rate) -> Found:
    """Joined schedules with boundaries at which none takes over."""
    for made in _made(rate.stage.rate):
        if made.__name__ == "join_schedules":
            given = made.arguments
            schedules, starts = given["schedules"], list(given["boundaries"])
            if ignored := starts[len(schedules) - 1 :]:
                many = f"{len(starts)} boundaries for {len(schedules)} schedules"
                yield f"{rate.stage} has {many}, and ignores {ignored}"


def _made(x: object) -> Iterator[MadeSchedule]:
    """The schedules of Stepax in a schedule, with itself."""
    x = unchecked(x)
    if isinstance(x, MadeSchedule):
        yield x
        for y in jax.tree.leaves([*x.arguments.values()]):
            yield from _made(y)


def in_micro_steps(rate: Rate) -> Found:
    """Schedules outside of an accumulation."""
    if rate.divides != 1:
        times = f"{rate.divides} times" if rate.divides else "several times"
        what = f"counts calls of `update`, {times} as many as steps"
        yield f"{rate.stage} is outside of the accumulation: it {what}"


def needs_calls(curve: Curve) -> Found:
    """Schedules inside of an accumulation that are as long as the calls."""
    is_long = curve.every > 1 and curve.is_decaying and curve.lasts > curve.length
    # One without an end, such as 1 / t, is not too long.
    of_calls = curve.within(curve.calls * curve.every) if is_long else None
    if of_calls is not None and of_calls.lasts <= of_calls.length:
        what = f"{curve.calls} calls of `update` are {curve.length} steps"
        message = f"{curve.stage} is longer than the run: {what}"
        yield Problem(message, cure=f"make it {curve.length} steps long")


def ends_early(curve: Curve) -> Found:
    """Schedules that reach nearly 0 before the end of a run."""
    is_early = curve.is_decaying and curve.lasts < 0.95 * curve.length
    if is_early and curve.final < 0.01 * curve.peak:
        what = f"is at its end after {curve.lasts} of {curve.length} steps"
        message = f"{curve.stage} {what}, and nearly 0 from then on"
        yield Problem(
            message, cure=f"make it {curve.length} steps long, or end above 0"
        )


def never_ends(curve: Curve) -> Found:
    """Schedules that are far from their end when a run ends."""
    gone = curve.peak - curve.values[-1]
    if curve.is_decaying and gone < 0.5 * (way := curve.peak - curve.final):
        what = f"has gone {gone / way:.0%} of its way when the run ends"
        cure = f"make it {curve.length} steps long"
        yield Problem(f"{curve.stage} {what}", cure=cure)


def long_warmup(curve: Curve) -> Found:
    """Warm-ups that last longer than a run."""
    last, is_rising = curve.values[-1], (np.diff(curve.values) >= 0).all()
    if is_rising and curve.values[0] < last < (1 - _SAME) * curve.peak:
        what = f"rises until the run ends, at {last / curve.peak:.0%} of its peak"
        yield f"{curve.stage} {what}"
