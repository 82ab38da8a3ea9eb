"""Gradient processing and optimization for JAX: a drop-in successor of Optax.

This module only lists names; each is defined in the module it is imported from.
"""

import types as _types
import typing as _typing
from importlib import import_module as _import_module

from . import schedules, solve, transforms, tree, tree_utils
from ._engine.arrays.numerics import (
    safe_increment,
    safe_int32_increment,
    safe_norm,
    safe_root_mean_squares,
)
from ._engine.base import (
    ArrayTree,
    EmptyState,
    GradientTransformation,
    GradientTransformationExtraArgs,
    MaskedNode,
    MaskOrFn,
    OptState,
    Params,
    PublicScalarOrSchedule as ScalarOrSchedule,
    Schedule,
    TransformInitFn,
    TransformUpdateExtraArgsFn,
    TransformUpdateFn,
    Updates,
    init_empty_state,
)
from ._engine.base.node import with_extra_args_support
from ._engine.factories.scheduled import WrappedSchedule
from ._engine.functions.deprecated import warn_deprecated as _warn_deprecated
from ._engine.step.leafwise import step
from ._engine.trees.apply import apply_updates, incremental_update, periodic_update
from ._engine.trees.packed import register_states as _register_states
from ._engine.trees.reduce import global_norm
from ._linesearch.backtracking import (
    ScaleByBacktrackingLinesearchState,
    scale_by_backtracking_linesearch,
)
from ._linesearch.from_state import value_and_grad_from_state
from ._linesearch.zoom import (
    ScaleByZoomLinesearchState,
    ZoomLinesearchInfo,
    scale_by_zoom_linesearch,
)
from ._names import HOMES as _HOMES, MOVED as _MOVED, attributes as _attributes
from ._optimizers.adabelief import ScaleByBeliefState, adabelief, scale_by_belief
from ._optimizers.adafactor import FactoredState, adafactor, scale_by_factored_rms
from ._optimizers.adagrad import (
    ScaleByAdaDeltaState,
    ScaleByRssState,
    ScaleBySM3State,
    adadelta,
    adagrad,
    scale_by_adadelta,
    scale_by_rss,
    scale_by_sm3,
    sm3,
)
from ._optimizers.adam import (
    ScaleByAdamState,
    ScaleByNadamState as ScaleByNadamState,
    adam,
    adamw,
    nadam,
    nadamw,
    scale_by_adam,
    scale_by_nadam,
)
from ._optimizers.adan import ScaleByAdanState, adan, scale_by_adan
from ._optimizers.amsgrad import (
    ScaleByAmsgradState,
    adamax,
    adamaxw,
    amsgrad,
    scale_by_adamax,
    scale_by_amsgrad,
    scale_by_yogi,
    yogi,
)
from ._optimizers.dog import scale_by_distance_over_gradients
from ._optimizers.lamb import (
    ScaleByNovogradState,
    fromage,
    lamb,
    lars,
    novograd,
    scale_by_novograd,
)
from ._optimizers.lbfgs import ScaleByLBFGSState, lbfgs, scale_by_lbfgs
from ._optimizers.lbfgsb import LBFGSBState as LBFGSBState, lbfgsb
from ._optimizers.lion import ScaleByLionState, lion, scale_by_lion
from ._optimizers.optimistic import (
    optimistic_adam,
    optimistic_adam_v2,
    optimistic_gradient_descent,
    scale_by_optimistic_gradient,
)
from ._optimizers.radam import radam, scale_by_radam
from ._optimizers.rmsprop import (
    ScaleByRmsState,
    ScaleByRpropState,
    ScaleByRStdDevState,
    rmsprop,
    rprop,
    scale_by_rms,
    scale_by_rprop,
    scale_by_stddev,
)
from ._optimizers.sgd import (
    TraceState,
    noisy_sgd,
    polyak_sgd,
    scale_by_polyak,
    sgd,
    sign_sgd,
    signum,
    trace,
)
from ._transforms.clip import (
    AdaptiveGradClipState,
    ClipByGlobalNormState,
    ClipState,
    NonNegativeParamsState,
    ZeroNansState,
    adaptive_grad_clip,
    clip,
    clip_by_block_rms,
    clip_by_global_norm,
    keep_params_nonnegative,
    per_example_global_norm_clip,
    per_example_layer_norm_clip,
    zero_nans,
)
from ._transforms.clip_recent import (
    AdaGCState as AdaGCState,
    AutoClipState as AutoClipState,
    ZClipState as ZClipState,
    clip_by_recent_norm,
)
from ._transforms.decay import AddDecayedWeightsState, add_decayed_weights
from ._transforms.decay_kinds import weight_decay, with_weight_decay
from ._transforms.mean import ApplyEvery, EmaState, apply_every, ema
from ._transforms.noise import AddNoiseState, add_noise
from ._transforms.norm import (
    ScaleByTrustRatioState,
    centralize,
    normalize_by_update_norm,
    scale_by_param_block_norm,
    scale_by_param_block_rms,
    scale_by_trust_ratio,
)
from ._transforms.proximal import proximal
from ._transforms.qk_clip import qk_clip
from ._transforms.scale import (
    ScaleByScheduleState,
    ScaleState,
    scale,
    scale_by_depth,
    scale_by_learning_rate,
    scale_by_path,
    scale_by_schedule,
    scale_by_sign,
    scale_gradient,
    stateless,
    stateless_with_tree_map,
)
from ._wrappers.accumulate import (
    MultiSteps,
    MultiStepsState,
    ShouldSkipUpdateFunction,
    WeightedMultiStepsState as WeightedMultiStepsState,
    skip_large_updates,
    skip_not_finite,
)
from ._wrappers.averages import (
    AveragesState as AveragesState,
    AverageState as AverageState,
    SwappedAverage as SwappedAverage,
    averages,
    swap_averages,
)
from ._wrappers.chain import chain, named_chain
from ._wrappers.conditional import (
    ApplyIfFiniteState,
    ConditionallyMaskState,
    ConditionallyTransformState,
    DynamicLossScaleState as DynamicLossScaleState,
    apply_if_finite,
    conditionally_mask,
    conditionally_transform,
    dynamic_loss_scale,
)
from ._wrappers.flatten import flatten
from ._wrappers.inject import (
    InjectHyperparamsState,
    InjectStatefulHyperparamsState,
    inject_hyperparams,
    inject_stateful_hyperparams,
)
from ._wrappers.lookahead import LookaheadParams, LookaheadState, lookahead
from ._wrappers.low_bit import low_bit_states
from ._wrappers.master import (
    MasterWeightsState as MasterWeightsState,
    master_params,
    master_weights,
    set_master_params,
)
from ._wrappers.monitor import (
    MonitorState,
    ObserveState as ObserveState,
    SnapshotState,
    measure_with_ema,
    monitor,
    observe,
    snapshot,
)
from ._wrappers.narrow import with_state_dtypes
from ._wrappers.partition import (
    MaskedState,
    MultiTransformState,
    PartitionState,
    freeze,
    identity,
    masked,
    multi_transform,
    partition,
    selective_transform,
    set_to_zero,
)
from ._wrappers.readers import eval_params
from ._wrappers.spikes import (
    RollbackState as RollbackState,
    SkipSpikesState as SkipSpikesState,
    rollback,
    skip_spikes,
)
from ._wrappers.stacked import stacked
from ._wrappers.stochastic import (
    StochasticRoundingState as StochasticRoundingState,
    stochastic_rounding,
)
from ._wrappers.strict import strict_keywords
from .schedules import (
    constant_schedule,
    cosine_decay_schedule,
    cosine_onecycle_schedule,
    exponential_decay,
    join_schedules,
    linear_onecycle_schedule,
    linear_schedule,
    piecewise_constant_schedule,
    piecewise_interpolate_schedule,
    polynomial_schedule,
    sgdr_schedule,
    warmup_constant_schedule,
    warmup_cosine_decay_schedule,
    warmup_exponential_decay_schedule,
)
from .tree import (
    bias_correction,
    update_infinity_moment,
    update_moment,
    update_moment_per_elem_norm,
)
from .tree_utils import tree_map_params


if _typing.TYPE_CHECKING:
    from . import (
        assignment,
        checkpoint,
        contrib,
        distributed,
        experimental,
        losses,
        metrics,
        microbatching,
        perturbations,
        projections,
        rules,
        second_order,
        testing,
        transfer,
    )

    # It imports this module.
    interop: _types.ModuleType
    from ._config.from_config import from_config
    from ._config.to_config import to_config
    from ._diagnose.diagnose import diagnose
    from ._diagnose.findings import Diagnosis as Diagnosis, Finding as Finding
    from ._engine.inspect.describe import describe
    from ._engine.inspect.hyperparams import hyperparams
    from ._functions.fused_scan import FusedScan as FusedScan, fused_scan
    from ._functions.linear_algebra import (
        matrix_inverse_pth_root,
        nnls,
        power_iteration,
    )
    from ._functions.multi_normal import multi_normal
    from ._sweep.driver import sweep
    from ._sweep.fit import SweepFit as SweepFit
    from ._sweep.result import SweepResult as SweepResult
    from .contrib import (
        DifferentiallyPrivateAggregateState,
        differentially_private_aggregate,
        dpsgd,
    )
    from .losses import (
        convex_kl_divergence,
        cosine_distance,
        cosine_similarity,
        ctc_loss,
        ctc_loss_with_forward_probs,
        generalized_kl_divergence,
        hinge_loss,
        huber_loss,
        kl_divergence,
        l2_loss,
        log_cosh,
        ntxent,
        safe_softmax_cross_entropy,
        sigmoid_binary_cross_entropy,
        sigmoid_focal_loss,
        smooth_labels,
        softmax_cross_entropy,
        softmax_cross_entropy_with_integer_labels,
        squared_error,
    )
    from .microbatching import microbatch
    from .solve._minimize.driver import minimize


__version__ = "0.1.0"

_register_states()


__all__ = [
    "AdaptiveGradClipState", "AddDecayedWeightsState", "AddNoiseState", "ApplyEvery",
    "ApplyIfFiniteState", "ArrayTree", "ClipByGlobalNormState", "ClipState",
    "ConditionallyMaskState", "ConditionallyTransformState",
    "DifferentiallyPrivateAggregateState", "EmaState", "EmptyState", "FactoredState",
    "GradientTransformation", "GradientTransformationExtraArgs",
    "InjectHyperparamsState", "InjectStatefulHyperparamsState", "LookaheadParams",
    "LookaheadState", "MaskOrFn", "MaskedNode", "MaskedState", "MonitorState",
    "MultiSteps", "MultiStepsState", "MultiTransformState", "NonNegativeParamsState",
    "OptState", "Params", "PartitionState", "ScalarOrSchedule", "ScaleByAdaDeltaState",
    "ScaleByAdamState", "ScaleByAdanState", "ScaleByAmsgradState",
    "ScaleByBacktrackingLinesearchState", "ScaleByBeliefState", "ScaleByLBFGSState",
    "ScaleByLionState", "ScaleByNovogradState", "ScaleByRStdDevState",
    "ScaleByRmsState", "ScaleByRpropState", "ScaleByRssState", "ScaleBySM3State",
    "ScaleByScheduleState", "ScaleByTrustRatioState", "ScaleByZoomLinesearchState",
    "ScaleState", "Schedule", "ShouldSkipUpdateFunction", "SnapshotState", "TraceState",
    "TransformInitFn", "TransformUpdateExtraArgsFn", "TransformUpdateFn", "Updates",
    "WrappedSchedule", "ZeroNansState", "ZoomLinesearchInfo", "adabelief", "adadelta",
    "adafactor", "adagrad", "adam", "adamax", "adamaxw", "adamw", "adan",
    "adaptive_grad_clip", "add_decayed_weights", "add_noise", "amsgrad", "apply_every",
    "apply_if_finite", "apply_updates", "assignment", "averages", "bias_correction",
    "centralize", "chain", "checkpoint", "clip", "clip_by_block_rms",
    "clip_by_global_norm", "clip_by_recent_norm", "conditionally_mask",
    "conditionally_transform", "constant_schedule", "contrib", "convex_kl_divergence",
    "cosine_decay_schedule", "cosine_distance", "cosine_onecycle_schedule",
    "cosine_similarity", "ctc_loss", "ctc_loss_with_forward_probs", "describe",
    "diagnose", "differentially_private_aggregate", "distributed", "dpsgd",
    "dynamic_loss_scale", "ema", "eval_params", "experimental", "exponential_decay",
    "flatten", "freeze", "from_config", "fromage", "fused_scan",
    "generalized_kl_divergence", "global_norm", "hinge_loss", "huber_loss",
    "hyperparams", "identity", "incremental_update", "init_empty_state",
    "inject_hyperparams", "inject_stateful_hyperparams", "interop", "join_schedules",
    "keep_params_nonnegative", "kl_divergence", "l2_loss", "lamb", "lars", "lbfgs",
    "lbfgsb", "linear_onecycle_schedule", "linear_schedule", "lion", "log_cosh",
    "lookahead", "losses", "low_bit_states", "masked", "master_params",
    "master_weights", "matrix_inverse_pth_root", "measure_with_ema", "metrics",
    "microbatch", "microbatching", "minimize", "monitor", "multi_normal",
    "multi_transform", "nadam", "nadamw", "named_chain", "nnls", "noisy_sgd",
    "normalize_by_update_norm", "novograd", "ntxent", "observe", "optimistic_adam",
    "optimistic_adam_v2", "optimistic_gradient_descent", "partition",
    "per_example_global_norm_clip", "per_example_layer_norm_clip", "periodic_update",
    "perturbations", "piecewise_constant_schedule", "piecewise_interpolate_schedule",
    "polyak_sgd", "polynomial_schedule", "power_iteration", "projections", "proximal",
    "qk_clip", "radam", "rmsprop", "rollback", "rprop", "rules", "safe_increment",
    "safe_int32_increment", "safe_norm", "safe_root_mean_squares",
    "safe_softmax_cross_entropy", "scale", "scale_by_adadelta", "scale_by_adam",
    "scale_by_adamax", "scale_by_adan", "scale_by_amsgrad",
    "scale_by_backtracking_linesearch", "scale_by_belief", "scale_by_depth",
    "scale_by_distance_over_gradients", "scale_by_factored_rms", "scale_by_lbfgs",
    "scale_by_learning_rate", "scale_by_lion", "scale_by_nadam", "scale_by_novograd",
    "scale_by_optimistic_gradient", "scale_by_param_block_norm",
    "scale_by_param_block_rms", "scale_by_path", "scale_by_polyak", "scale_by_radam",
    "scale_by_rms", "scale_by_rprop", "scale_by_rss", "scale_by_schedule",
    "scale_by_sign", "scale_by_sm3", "scale_by_stddev", "scale_by_trust_ratio",
    "scale_by_yogi", "scale_by_zoom_linesearch", "scale_gradient", "schedules",
    "second_order", "selective_transform", "set_master_params", "set_to_zero", "sgd",
    "sgdr_schedule", "sigmoid_binary_cross_entropy", "sigmoid_focal_loss", "sign_sgd",
    "signum", "skip_large_updates", "skip_not_finite", "skip_spikes", "sm3",
    "smooth_labels", "snapshot", "softmax_cross_entropy",
    "softmax_cross_entropy_with_integer_labels", "solve", "squared_error", "stacked",
    "stateless", "stateless_with_tree_map", "step", "stochastic_rounding",
    "strict_keywords", "swap_averages", "sweep", "testing", "to_config", "trace",
    "transfer", "transforms", "tree", "tree_map_params", "tree_utils",
    "update_infinity_moment", "update_moment", "update_moment_per_elem_norm",
    "value_and_grad_from_state", "warmup_constant_schedule",
    "warmup_cosine_decay_schedule", "warmup_exponential_decay_schedule", "weight_decay",
    "with_extra_args_support", "with_state_dtypes", "with_weight_decay", "yogi",
    "zero_nans",
]  # fmt: skip


def __dir__() -> list[str]:
    return [name for name in __all__ if name not in _MOVED]  # accessing these warns


# Hidden from type checkers, which would otherwise accept any misspelt name.
if not _typing.TYPE_CHECKING:
    _, _find = _attributes(__name__, _HOMES)

    def __getattr__(name):
        if name in _MOVED:
            _warn_deprecated(name)
            return vars(_import_module(f"{__name__}.contrib"))[name]
        return _find(name)
