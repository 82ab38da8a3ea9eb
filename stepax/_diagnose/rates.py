"""Learning rates and their schedules, signs, weight decay, and clips."""

from collections.abc import Callable, Iterator

import numpy as np

from .curves import SAME, Curve, Rate
from .findings import Found, Problem
from .stages import NORM_CLIPS, Place, Stage, Track, product, sampled, value_of


# Made for gradients, whose size they bound.
_GRADIENT_CLIPS = ("clip", "clip_by_global_norm")


def rate_never(track: Track) -> Found:
    """Parameters whose update no part scales."""
    is_still = product(track.stages) in (None, 0)
    if not track.stages:
        what = "no part sees these parameters, so that their update is the gradient"
        cure = "use `partition`, with an optimizer or `set_to_zero()` for them"
        yield Problem(f"{what} itself, and goes uphill", cure=cure)
    elif not is_still and not any(x.scales for x in track.stages):
        yield (
            "no part applies a learning rate or a negative scale, so that updates are "
            "of the size of gradients or of order 1, and go uphill"
        )


def uphill(track: Track) -> Found:
    """Parameters that move along the gradient."""
    # Gradients that are negated before anything else are meant to be climbed.
    is_meant = any(value_of(x.factor) == -1 for x in track.stages[:1])
    is_up = product(track.stages) == 1 and not is_meant
    if is_up and any(x.scales for x in track.stages):
        flips = " and ".join(str(x) for x in track.stages if x.sign == -1)
        what = f"{flips} negate them" if flips else "no part negates them"
        cure = "negate once: an optimizer already does" if flips else ""
        yield Problem(f"updates go uphill: {what}", cure=cure)


def rate_twice(track: Track) -> Found:
    """Parameters whose updates two parts multiply by a learning rate."""
    # An optimizer may scale in several stages.
    rates = {x.owner or x.part: str(x) for x in _rates(track)}
    if len(rates) > 1:
        both = " and then ".join(rates.values())
        yield f"{both} each apply a learning rate, and steps are the product"


def _rates(track: Track) -> Iterator[Stage]:
    is_complete = False
    for stage in track.stages:
        negates = is_complete and stage.owner is None and stage.sign == -1
        # Only a sign, which the rule about signs is for.
        is_sign = value_of(stage.rate) in (1, -1)
        if not is_sign and (stage.is_rate or (negates and stage.scales)):
            yield stage
        is_complete = is_complete or (stage.owner is not None and stage.scales)


def never_updated(track: Track) -> Found:
    """Parameters whose updates are always zero, without saying so."""
    return _still(track, callable)


def never_updated_in_run(track: Track) -> Found:
    """Parameters whose learning rate is 0 in a run of a known length."""
    return _still(track, lambda rate: not callable(rate))


def _still(track: Track, is_meant: Callable) -> Found:
    zeros = [x for x in track.stages if x.sign == 0]
    if not any(x.is_frozen for x in zeros):
        for stage in [x for x in zeros if is_meant(x.rate)][:1]:
            yield f"{stage} multiplies updates by 0, so that they never move"


def clip_before_orthogonalizer(at: Place) -> Found:
    """Clipped gradients of matrices whose updates are normalized anyway."""
    clips = [x for x in at.before if x.name in NORM_CLIPS]
    if clips and at.matrices:
        message = (
            f"{clips[-1]} does not bound the steps of these matrices: {at.stage} "
            "normalizes them afterwards, and it only weighs gradients in the momentum"
        )
        yield Problem(message, at.matrices)


def clip_after_scaling(at: Place) -> Found:
    """A gradient clip that comes after the part that scales gradients."""
    scaling = [x for x in at.before if x.normalizes or x.scales]
    # The clip of an optimizer is part of its algorithm.
    if at.stage.name in _GRADIENT_CLIPS and not at.stage.owner and scaling:
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
    vectors = tuple(x.path for x in track.leaves if len(x.shape) < 2)
    if vectors and any(x.decays for x in track.stages):
        message = "weight decay also acts on biases, norm scales or scalars"
        yield Problem(message, vectors)


def first_step_zero(rate: Rate) -> Found:
    """Schedules that start at 0."""
    values = sampled(rate.stage.rate, [rate.first, rate.first + 1])
    if values is not None and values[0] == 0 != values[1]:
        yield f"{rate.stage} is 0 in the first step, whose gradient is lost"


def in_micro_steps(rate: Rate) -> Found:
    """Schedules outside of an accumulation."""
    if rate.divides != 1:
        times = f"{rate.divides} times" if rate.divides else "several times"
        what = f"counts calls of `update`, {times} as many as steps"
        yield f"{rate.stage} is outside of the accumulation: it {what}"


def needs_calls(curve: Curve) -> Found:
    """Schedules inside of an accumulation that are as long as the calls."""
    rate, length = curve.rate, curve.length
    is_long = rate.every > 1 and curve.is_decaying and curve.lasts > length
    # One without an end, such as 1 / t, is not too long.
    of_calls = rate.within(curve.calls * rate.every) if is_long else None
    if of_calls is not None and of_calls.lasts <= of_calls.length:
        what = f"{curve.calls} calls of `update` are {length} steps"
        message = f"{rate.stage} is longer than the run: {what}"
        yield Problem(message, cure=f"make it {length} steps long")


def ends_early(curve: Curve) -> Found:
    """Schedules that reach nearly 0 before the end of a run."""
    is_early = curve.is_decaying and curve.lasts < 0.95 * curve.length
    if is_early and curve.final < 0.01 * curve.peak:
        what = f"is at its end after {curve.lasts} of {curve.length} steps"
        cure = f"make it {curve.length} steps long, or end above 0"
        yield Problem(
            f"{curve.rate.stage} {what}, and nearly 0 from then on", cure=cure
        )


def never_ends(curve: Curve) -> Found:
    """Schedules that are far from their end when a run ends."""
    gone = curve.peak - curve.values[-1]
    if curve.is_decaying and gone < 0.5 * (way := curve.peak - curve.final):
        what = f"has gone {gone / way:.0%} of its way when the run ends"
        cure = f"make it {curve.length} steps long"
        yield Problem(f"{curve.rate.stage} {what}", cure=cure)


def long_warmup(curve: Curve) -> Found:
    """Warm-ups that last longer than a run."""
    last, is_rising = curve.values[-1], (np.diff(curve.values) >= 0).all()
    if is_rising and curve.values[0] < last < (1 - SAME) * curve.peak:
        what = f"rises until the run ends, at {last / curve.peak:.0%} of its peak"
        yield f"{curve.rate.stage} {what}"
