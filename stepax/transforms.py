"""Optax's module of this name; what Optax does not have is in `stepax` alone."""

import typing as _typing

from ._engine.base import MaskedNode as MaskedNode
from ._names import attributes as _attributes
from ._optimizers.sgd import TraceState as TraceState, trace as trace
from ._transforms.clip import (
    NonNegativeParamsState as NonNegativeParamsState,
    ZeroNansState as ZeroNansState,
    adaptive_grad_clip as adaptive_grad_clip,
    clip as clip,
    clip_by_block_rms as clip_by_block_rms,
    clip_by_global_norm as clip_by_global_norm,
    keep_params_nonnegative as keep_params_nonnegative,
    per_example_global_norm_clip as per_example_global_norm_clip,
    per_example_layer_norm_clip as per_example_layer_norm_clip,
    unitwise_clip as unitwise_clip,
    unitwise_norm as unitwise_norm,
    zero_nans as zero_nans,
)
from ._transforms.decay import add_decayed_weights as add_decayed_weights
from ._transforms.mean import EmaState as EmaState, ema as ema
from ._transforms.noise import AddNoiseState as AddNoiseState, add_noise as add_noise
from ._wrappers.accumulate import (
    MultiSteps as MultiSteps,
    MultiStepsState as MultiStepsState,
    ShouldSkipUpdateFunction as ShouldSkipUpdateFunction,
    skip_large_updates as skip_large_updates,
    skip_not_finite as skip_not_finite,
)
from ._wrappers.chain import chain as chain, named_chain as named_chain
from ._wrappers.conditional import (
    ApplyIfFiniteState as ApplyIfFiniteState,
    ConditionallyMaskState as ConditionallyMaskState,
    ConditionallyTransformState as ConditionallyTransformState,
    ConditionFn as ConditionFn,
    apply_if_finite as apply_if_finite,
    conditionally_mask as conditionally_mask,
    conditionally_transform as conditionally_transform,
)
from ._wrappers.flatten import flatten as flatten
from ._wrappers.monitor import (
    MonitorState as MonitorState,
    SnapshotState as SnapshotState,
    measure_with_ema as measure_with_ema,
    monitor as monitor,
    snapshot as snapshot,
)
from ._wrappers.partition import (
    MaskedState as MaskedState,
    PartitionState as PartitionState,
    freeze as freeze,
    masked as masked,
    partition as partition,
    selective_transform as selective_transform,
)


__all__ = [  # pyright: ignore[reportUnsupportedDunderAll] (known when it runs)
    name for name in globals() if not name.startswith("_")
]

if not _typing.TYPE_CHECKING:
    __dir__, __getattr__ = _attributes(__name__)
