"""What stages do to updates: their sign and size, clipping, decay, orthogonalization.

Only of Stepax's own factories is this known; a test measures it for all of them.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from .._engine.factories.registry import ROWS
from .._engine.step.plan import node_of
from .._engine.step.rule import Rule
from .stages import (
    COUNTS,
    Leaf,
    Stage,
    View,
    is_injection,
    name_of,
    sampled,
    value_of,
)


# The factors of scales.
_FACTORS = {"scale": "step_size", "scale_by_schedule": "step_size_fn"}
# They run functions of users.
_UNKNOWN = ("", "stateless", "stateless_with_tree_map")
# Parts of optimizers that descend by themselves.
_DESCENDING = ("scale_by_madgrad", "scale_by_cocob", "hyperball")

# fmt: off
NORM_CLIPS = (
    "clip_by_global_norm", "clip_by_block_rms", "adaptive_grad_clip",
    "clip_by_recent_norm",
)
# Made for gradients, whose size they bound.
GRADIENT_CLIPS = ("clip", "clip_by_global_norm")
_ORTHOGONALIZING = (
    "scale_by_muon", "scale_by_dion", "scale_by_dion2", "scale_by_normuon", "muown",
    "_scion_direction",
)
# Rules whose updates do not grow with gradients, though they keep no squares.
_NORMALIZING = (
    "scale_by_sign", "scale_by_lion", "scale_by_cautious_lion", "scale_by_rprop",
    "scale_by_trust_ratio", "scale_by_lbfgs", "scale_by_curvature", "normalize",
    "normalize_by_update_norm", "hyperball", "_scale_by_dog", "_scale_by_dowg",
    "scale_by_distance_over_gradients", "scale_by_polyak", "scale_by_sm3",
)
# Their learning rate is a factor of one that they estimate.
ESTIMATING = (
    "prodigy", "dadapt_adamw", "dadapt_sgd", "_scale_by_dog", "_scale_by_dowg",
    "scale_by_distance_over_gradients", "scale_by_cocob", "momo", "momo_adam",
)
# fmt: on
# The amount of decay in each of these; of optimizers it is `weight_decay`.
_AMOUNTS = {"_decay_by": "amount", "_decay_of_sum": "amount"}


def factor(stage: Stage) -> Any:
    """The number or schedule by which a scale multiplies; `None` if it is no scale."""
    return stage.given.get(_FACTORS.get(stage.name, ""))


def rate_of(stage: Stage) -> Any:
    """The number or schedule by which it multiplies steps; `None` if it has none."""
    return stage.given.get("learning_rate") if descends(stage) else factor(stage)


def descends(stage: Stage) -> bool:
    """Whether a rule or closure makes whole steps, with the learning rate and sign."""
    row = ROWS.get(stage.name)
    is_whole = row is not None and row.kind == "optimizer"
    return is_whole or stage.name in _DESCENDING


def is_rate(stage: Stage) -> bool:
    """Whether it applies a learning rate, rather than another factor."""
    is_given = name_of(stage.part) == "scale_by_learning_rate"
    return (is_given and factor(stage) is not None) or descends(stage)


def scales(stage: Stage) -> bool:
    """Whether it multiplies updates by a factor of the user."""
    return factor(stage) is not None or descends(stage)


def sign(stage: Stage) -> int | None:
    """The sign of the factor from what comes in to what goes out, if it is known."""
    if stage.name in _UNKNOWN:
        return None
    if stage.name == "set_to_zero":
        return 0
    if descends(stage):
        own = sign_of(stage.given.get("learning_rate", 1.0))
        return None if own is None else -own
    return 1 if factor(stage) is None else sign_of(factor(stage))


def is_frozen(stage: Stage) -> bool:
    """Whether it multiplies updates by 0, and is meant to.

    A rate of 0 for some paths is how to freeze them, and an injected number may be set
    in the state before each step.
    """
    is_injected = any(map(is_injection, stage.around))
    is_settable = is_injected and not callable(rate_of(stage))
    is_meant = stage.name == "set_to_zero" or stage.is_varied or is_settable
    return is_meant and sign(stage) == 0


def sign_of(x: Any) -> int | None:
    """The sign of a number, or of all values of a schedule."""
    values = sampled(x, COUNTS) if callable(x) else np.asarray([value_of(x, np.nan)])
    if values is None or np.isnan(values).any():
        return None
    is_up, is_down = bool((values > 0).any()), bool((values < 0).any())
    return None if is_up and is_down else is_up - is_down


def normalizes(stage: Stage) -> bool:
    """Whether its updates have a size of their own, whatever that of gradients is."""
    nodes = (node_of(part.tx) for part in stage.part.walk())
    rule = next((x for x in nodes if isinstance(x, Rule)), None)
    if stage.name in _NORMALIZING:
        return True
    if not stage.name or rule is None or stage.name in NORM_CLIPS:
        return False
    return bool(rule.batched) or any(slot.is_positive for slot in rule.slots.values())


def decays(stage: Stage) -> bool:
    """Whether it pulls parameters to zero."""
    if not stage.name:
        return False
    amount = stage.given.get(_AMOUNTS.get(stage.name, "weight_decay"))
    if amount is None or callable(amount) or isinstance(amount, Mapping):
        return amount is not None
    return value_of(amount, otherwise=1) != 0


def orthogonalizes(view: View, stage: Stage, leaf: Leaf) -> bool:
    """Whether it takes a parameter as a matrix, and makes all of its steps alike."""
    if stage.name not in _ORTHOGONALIZING or len(leaf.shape) < 2:
        return False
    if stage.name == "_scion_direction":
        return stage.given["norm"].startswith("spectral")
    if stage.name != "scale_by_muon":
        return True  # others raise for what they are not told to take
    spec = stage.given["weight_dimension_numbers"]
    return len(leaf.shape) == 2 if spec is None else view.is_matrix(spec, leaf)
