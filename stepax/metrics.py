"""Metrics of gradients, updates and parameters, for `observe` and any logger.

Each is a function of the updates before a transformation, the updates after it and the
parameters, or a `StatefulMetric`, which has a memory.  `tree.flat` returns the latest
values in a state by name.
"""

from typing import TYPE_CHECKING

from ._metrics import (
    by_layer,
    cosine_to_last,
    lost_updates,
    rms,
    update_ratio,
)
from ._metrics.noise import Noise, gradient_noise, noise_scale
from ._names import attributes
from ._wrappers.monitor import Observation, StatefulMetric


__all__ = [
    "Noise", "Observation", "StatefulMetric", "by_layer", "cosine_to_last",
    "gradient_noise", "lost_updates", "noise_scale", "rms", "update_ratio",
]  # fmt: skip

if not TYPE_CHECKING:
    __dir__, __getattr__ = attributes(__name__)
