"""The building blocks of optimizers; this module only lists names."""

import typing as _typing

from ._engine.base.protocol import MaskedNode as MaskedNode
from ._names import attributes as _attributes
from ._optimizers.sgd import TraceState as TraceState, trace as trace
from ._transforms.clip import (
    adaptive_grad_clip as adaptive_grad_clip,
    clip as clip,
    clip_by_block_rms as clip_by_block_rms,
    clip_by_global_norm as clip_by_global_norm,
    per_example_global_norm_clip as per_example_global_norm_clip,
    per_example_layer_norm_clip as per_example_layer_norm_clip,
    unitwise_clip as unitwise_clip,
    unitwise_norm as unitwise_norm,
)
from ._transforms.clip_recent import (
    AdaGCState as AdaGCState,
    AutoClipState as AutoClipState,
    ZClipState as ZClipState,
    clip_by_recent_norm as clip_by_recent_norm,
)
from ._transforms.constrain import (
    NonNegativeParamsState as NonNegativeParamsState,
    keep_params_nonnegative as keep_params_nonnegative,
)
from ._transforms.decay import add_decayed_weights as add_decayed_weights
from ._transforms.mean import EmaState as EmaState, ema as ema
from ._transforms.nans import ZeroNansState as ZeroNansState, zero_nans as zero_nans
from ._transforms.noise import AddNoiseState as AddNoiseState, add_noise as add_noise
from ._transforms.qk_clip import qk_clip as qk_clip
from ._wrappers.accumulate import (
    MultiSteps as MultiSteps,
    MultiStepsState as MultiStepsState,
    ShouldSkipUpdateFunction as ShouldSkipUpdateFunction,
    skip_large_updates as skip_large_updates,
    skip_not_finite as skip_not_finite,
)
from ._wrappers.average import (
    AverageParamsState as AverageParamsState,
    average_params as average_params,
    averaged_params as averaged_params,
)
from ._wrappers.chain import chain as chain, named_chain as named_chain
from ._wrappers.conditional import (
    ConditionallyMaskState as ConditionallyMaskState,
    ConditionallyTransformState as ConditionallyTransformState,
    ConditionFn as ConditionFn,
    conditionally_mask as conditionally_mask,
    conditionally_transform as conditionally_transform,
)
from ._wrappers.finite import (
    ApplyIfFiniteState as ApplyIfFiniteState,
    apply_if_finite as apply_if_finite,
)
from ._wrappers.flatten import flatten as flatten
from ._wrappers.loss_scale import (
    DynamicLossScaleState as DynamicLossScaleState,
    dynamic_loss_scale as dynamic_loss_scale,
)
from ._wrappers.low_bit import low_bit_states as low_bit_states
from ._wrappers.master import (
    MasterWeightsState as MasterWeightsState,
    master_params as master_params,
    master_weights as master_weights,
    set_master_params as set_master_params,
)
from ._wrappers.monitor import (
    MonitorState as MonitorState,
    ObserveState as ObserveState,
    SnapshotState as SnapshotState,
    measure_with_ema as measure_with_ema,
    monitor as monitor,
    observe as observe,
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
from ._wrappers.spikes import (
    SkipSpikesState as SkipSpikesState,
    skip_spikes as skip_spikes,
)
from ._wrappers.state_dtypes import with_state_dtypes as with_state_dtypes
from ._wrappers.stochastic import (
    StochasticRoundingState as StochasticRoundingState,
    stochastic_rounding as stochastic_rounding,
)


__all__ = [  # pyright: ignore[reportUnsupportedDunderAll] (known when it runs)
    name for name in globals() if not name.startswith("_")
]

if not _typing.TYPE_CHECKING:
    __dir__, __getattr__ = _attributes(__name__)
