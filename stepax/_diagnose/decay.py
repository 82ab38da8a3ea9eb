"""Weight decay: where it comes in a chain, how often, and on what."""

import math
from collections.abc import Iterator

from .findings import Problem
from .stages import Stage, View, value_of
from .traits import decays, normalizes, sign


def decay_before_preconditioner(view: View) -> Iterator[Problem]:
    """Decay that a preconditioner divides, as it does gradients."""
    for track, _, stage, after in view.placed():
        # Some optimizers are defined so.
        later = [x for x in after if stage.owner is None or x.owner is not stage.owner]
        scaling = [x for x in later if normalizes(x)]
        if stage.name == "add_decayed_weights" and decays(stage) and scaling:
            message = (
                f"{stage} comes before {scaling[0]}, which scales the decay as it does "
                "gradients: L2 regularization, not decoupled weight decay"
            )
            yield Problem(message, track.paths)


def decay_twice(view: View) -> Iterator[Problem]:
    """Parameters on which two decays act."""
    for track, before, stage, _ in view.placed():
        first = [
            x for x in before if decays(x) and not (x.owner and x.owner is stage.owner)
        ]
        if first and decays(stage):
            message = f"{first[0]} and {stage} both decay these parameters"
            yield Problem(message, track.paths)


def decay_uphill(view: View) -> Iterator[Problem]:
    """Decay that is added to a finished step, and so lets parameters grow."""
    for track, before, stage, after in view.placed():
        if stage.name != "add_decayed_weights" or stage.owner or not decays(stage):
            continue
        is_positive = value_of(stage.given["weight_decay"], otherwise=1) > 0
        if is_positive and _total(before) == -1 and _total(after) == 1:
            what = "comes after the learning rate, so that parameters grow in each step"
            yield Problem(f"{stage} {what}", track.paths)


def _total(stages: tuple[Stage, ...]) -> int | None:
    """The sign of several stages together, if it is known."""
    signs = [sign(stage) for stage in stages]
    return math.prod(x for x in signs if x is not None) if None not in signs else None


def decay_on_vectors(view: View) -> Iterator[Problem]:
    """Biases, norm scales and scalars that decay."""
    for track in view.tracks:
        paths = tuple(leaf.path for leaf in track.leaves if len(leaf.shape) < 2)
        if paths and any(map(decays, track.stages)):
            message = "weight decay also acts on biases, norm scales or scalars"
            yield Problem(message, paths)
