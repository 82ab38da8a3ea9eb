"""Learning rates: none, two, or of the wrong sign."""

import math
from collections.abc import Callable, Iterator

from .findings import Problem
from .stages import Stage, Track, View, value_of
from .traits import is_frozen, is_rate, rate_of, scales, sign


def rate_never(view: View) -> Iterator[Problem]:
    """Parameters whose update no part scales."""
    for track in view.tracks:
        signs = _known_signs(track)
        if signs is None or 0 in signs or any(map(scales, track.stages)):
            continue
        if track.stages:
            message = (
                "no part applies a learning rate or a negative scale, so that updates "
                "are of the size of gradients or of order 1, and go uphill"
            )
            yield Problem(message, _floats(track))
        else:
            message = (
                "no part sees these parameters, so that their update is the gradient "
                "itself, and goes uphill"
            )
            cure = "use `partition`, with an optimizer or `set_to_zero()` for them"
            yield Problem(message, _floats(track), cure)


def uphill(view: View) -> Iterator[Problem]:
    """Parameters that move along the gradient."""
    for track in view.tracks:
        signs = _known_signs(track)
        if not signs or math.prod(signs) <= 0 or not any(map(scales, track.stages)):
            continue
        pairs = zip(track.stages, signs, strict=True)
        flips = [str(stage) for stage, sign in pairs if sign < 0]
        what = f"{' and '.join(flips)} negate them" if flips else "no part negates them"
        cure = "negate once: an optimizer already does" if flips else ""
        yield Problem(f"updates go uphill: {what}", _floats(track), cure)


def rate_twice(view: View) -> Iterator[Problem]:
    """Parameters whose updates two parts multiply by a learning rate."""
    for track in view.tracks:
        # An optimizer may scale in several stages.
        rates = {stage.owner or stage.part: stage for stage in _rates(track)}
        if len(rates) > 1:
            both = " and then ".join(map(str, rates.values()))
            message = f"{both} each apply a learning rate, and steps are the product"
            yield Problem(message, _floats(track))


def _rates(track: Track) -> Iterator[Stage]:
    is_complete = False
    for stage in track.stages:
        negates = is_complete and stage.owner is None and sign(stage) == -1
        # Only a sign, which the rule about signs is for.
        is_sign = value_of(rate_of(stage)) in (1, -1)
        if not is_sign and (is_rate(stage) or (negates and scales(stage))):
            yield stage
        is_complete = is_complete or (stage.owner is not None and scales(stage))


def never_updated(view: View) -> Iterator[Problem]:
    """Parameters whose updates are always zero, without saying so."""
    return _still(view, callable)


def never_updated_in_run(view: View) -> Iterator[Problem]:
    """Parameters with a rate of 0 in a run; elsewhere it may be a placeholder."""
    return _still(view, lambda rate: not callable(rate))


def _still(view: View, is_meant: Callable) -> Iterator[Problem]:
    for track in view.tracks:
        zeros = [stage for stage in track.stages if sign(stage) == 0]
        if any(map(is_frozen, zeros)):
            continue
        for stage in [x for x in zeros if is_meant(rate_of(x))][:1]:
            message = f"{stage} multiplies updates by 0, so that they never move"
            yield Problem(message, _floats(track))


def _known_signs(track: Track) -> list[int] | None:
    """The sign of each stage; `None` if one is not known or there is no gradient."""
    signs = [sign(stage) for stage in track.stages]
    known = [x for x in signs if x is not None]
    return known if len(known) == len(signs) and _floats(track) else None


def _floats(track: Track) -> tuple[str, ...]:
    return tuple(leaf.path for leaf in track.leaves if leaf.is_float)
