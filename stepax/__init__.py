"""Gradient processing and optimization for JAX: a drop-in successor of Optax.

This module only lists names; each is defined in the module it is imported from.
"""

import typing as _typing
from importlib import import_module as _import_module

from . import (
    schedules as schedules,
    transforms as transforms,
    tree as tree,
    tree_utils as tree_utils,
)
from ._engine.arrays.numerics import (
    safe_increment as safe_increment,
    safe_int32_increment as safe_int32_increment,
    safe_norm as safe_norm,
    safe_root_mean_squares as safe_root_mean_squares,
)
from ._engine.base import (
    ArrayTree as ArrayTree,
    EmptyState as EmptyState,
    GradientTransformation as GradientTransformation,
    GradientTransformationExtraArgs as GradientTransformationExtraArgs,
    MaskedNode as MaskedNode,
    MaskOrFn as MaskOrFn,
    OptState as OptState,
    Params as Params,
    ScalarOrSchedule as ScalarOrSchedule,
    Schedule as Schedule,
    TransformInitFn as TransformInitFn,
    TransformUpdateExtraArgsFn as TransformUpdateExtraArgsFn,
    TransformUpdateFn as TransformUpdateFn,
    Updates as Updates,
    init_empty_state as init_empty_state,
    with_extra_args_support as with_extra_args_support,
)
from ._engine.factories.scheduled import WrappedSchedule as WrappedSchedule
from ._engine.functions.calls import warn_deprecated as _warn_deprecated
from ._engine.inspect.keywords import strict as strict
from ._engine.step.applied import step as step
from ._engine.trees.apply import (
    apply_updates as apply_updates,
    incremental_update as incremental_update,
    periodic_update as periodic_update,
)
from ._engine.trees.packed import register_states as _register_states
from ._engine.trees.reduce import global_norm as global_norm
from ._linesearch.backtracking import (
    ScaleByBacktrackingLinesearchState as ScaleByBacktrackingLinesearchState,
    scale_by_backtracking_linesearch as scale_by_backtracking_linesearch,
)
from ._linesearch.from_state import (
    value_and_grad_from_state as value_and_grad_from_state,
)
from ._linesearch.zoom import (
    ScaleByZoomLinesearchState as ScaleByZoomLinesearchState,
    ZoomLinesearchInfo as ZoomLinesearchInfo,
    scale_by_zoom_linesearch as scale_by_zoom_linesearch,
)
from ._names import LATER as _LATER, MOVED as _MOVED, NAMES_LATER as _NAMES_LATER
from ._optimizers.adabelief import (
    ScaleByBeliefState as ScaleByBeliefState,
    adabelief as adabelief,
    scale_by_belief as scale_by_belief,
)
from ._optimizers.adafactor import (
    FactoredState as FactoredState,
    adafactor as adafactor,
    scale_by_factored_rms as scale_by_factored_rms,
)
from ._optimizers.adagrad import (
    ScaleByAdaDeltaState as ScaleByAdaDeltaState,
    ScaleByRssState as ScaleByRssState,
    ScaleBySM3State as ScaleBySM3State,
    adadelta as adadelta,
    adagrad as adagrad,
    scale_by_adadelta as scale_by_adadelta,
    scale_by_rss as scale_by_rss,
    scale_by_sm3 as scale_by_sm3,
    sm3 as sm3,
)
from ._optimizers.adam import (
    ScaleByAdamState as ScaleByAdamState,
    ScaleByNadamState as ScaleByNadamState,
    adam as adam,
    adamw as adamw,
    nadam as nadam,
    nadamw as nadamw,
    scale_by_adam as scale_by_adam,
    scale_by_nadam as scale_by_nadam,
)
from ._optimizers.adan import (
    ScaleByAdanState as ScaleByAdanState,
    adan as adan,
    scale_by_adan as scale_by_adan,
)
from ._optimizers.amsgrad import (
    ScaleByAmsgradState as ScaleByAmsgradState,
    adamax as adamax,
    adamaxw as adamaxw,
    amsgrad as amsgrad,
    scale_by_adamax as scale_by_adamax,
    scale_by_amsgrad as scale_by_amsgrad,
    scale_by_yogi as scale_by_yogi,
    yogi as yogi,
)
from ._optimizers.dog import (
    scale_by_distance_over_gradients as scale_by_distance_over_gradients,
)
from ._optimizers.lamb import (
    ScaleByNovogradState as ScaleByNovogradState,
    fromage as fromage,
    lamb as lamb,
    lars as lars,
    novograd as novograd,
    scale_by_novograd as scale_by_novograd,
)
from ._optimizers.lbfgs import (
    ScaleByLBFGSState as ScaleByLBFGSState,
    lbfgs as lbfgs,
    scale_by_lbfgs as scale_by_lbfgs,
)
from ._optimizers.lbfgsb import LBFGSBState as LBFGSBState, lbfgsb as lbfgsb
from ._optimizers.lion import (
    ScaleByLionState as ScaleByLionState,
    lion as lion,
    scale_by_lion as scale_by_lion,
)
from ._optimizers.optimistic import (
    optimistic_adam as optimistic_adam,
    optimistic_adam_v2 as optimistic_adam_v2,
    optimistic_gradient_descent as optimistic_gradient_descent,
    scale_by_optimistic_gradient as scale_by_optimistic_gradient,
)
from ._optimizers.radam import radam as radam, scale_by_radam as scale_by_radam
from ._optimizers.rmsprop import (
    ScaleByRmsState as ScaleByRmsState,
    ScaleByRpropState as ScaleByRpropState,
    ScaleByRStdDevState as ScaleByRStdDevState,
    rmsprop as rmsprop,
    rprop as rprop,
    scale_by_rms as scale_by_rms,
    scale_by_rprop as scale_by_rprop,
    scale_by_stddev as scale_by_stddev,
)
from ._optimizers.sgd import (
    TraceState as TraceState,
    noisy_sgd as noisy_sgd,
    polyak_sgd as polyak_sgd,
    scale_by_polyak as scale_by_polyak,
    sgd as sgd,
    sign_sgd as sign_sgd,
    signum as signum,
    trace as trace,
)
from ._transforms.by_path import (
    scale_by_depth as scale_by_depth,
    scale_by_path as scale_by_path,
)
from ._transforms.clip import (
    AdaptiveGradClipState as AdaptiveGradClipState,
    ClipByGlobalNormState as ClipByGlobalNormState,
    ClipState as ClipState,
    NonNegativeParamsState as NonNegativeParamsState,
    ZeroNansState as ZeroNansState,
    adaptive_grad_clip as adaptive_grad_clip,
    clip as clip,
    clip_by_block_rms as clip_by_block_rms,
    clip_by_global_norm as clip_by_global_norm,
    keep_params_nonnegative as keep_params_nonnegative,
    per_example_global_norm_clip as per_example_global_norm_clip,
    per_example_layer_norm_clip as per_example_layer_norm_clip,
    zero_nans as zero_nans,
)
from ._transforms.clip_recent import (
    AdaGCState as AdaGCState,
    AutoClipState as AutoClipState,
    ZClipState as ZClipState,
    clip_by_recent_norm as clip_by_recent_norm,
)
from ._transforms.decay import (
    AddDecayedWeightsState as AddDecayedWeightsState,
    add_decayed_weights as add_decayed_weights,
)
from ._transforms.decay_kinds import (
    weight_decay as weight_decay,
    with_weight_decay as with_weight_decay,
)
from ._transforms.mean import (
    ApplyEvery as ApplyEvery,
    EmaState as EmaState,
    apply_every as apply_every,
    ema as ema,
)
from ._transforms.noise import AddNoiseState as AddNoiseState, add_noise as add_noise
from ._transforms.norm import (
    ScaleByTrustRatioState as ScaleByTrustRatioState,
    centralize as centralize,
    normalize_by_update_norm as normalize_by_update_norm,
    scale_by_param_block_norm as scale_by_param_block_norm,
    scale_by_param_block_rms as scale_by_param_block_rms,
    scale_by_trust_ratio as scale_by_trust_ratio,
)
from ._transforms.proximal import proximal as proximal
from ._transforms.qk_clip import qk_clip as qk_clip
from ._transforms.scale import (
    ScaleByScheduleState as ScaleByScheduleState,
    ScaleState as ScaleState,
    scale as scale,
    scale_by_learning_rate as scale_by_learning_rate,
    scale_by_schedule as scale_by_schedule,
    scale_by_sign as scale_by_sign,
    scale_gradient as scale_gradient,
    stateless as stateless,
    stateless_with_tree_map as stateless_with_tree_map,
)
from ._wrappers.accumulate import (
    MultiSteps as MultiSteps,
    MultiStepsState as MultiStepsState,
    ShouldSkipUpdateFunction as ShouldSkipUpdateFunction,
    WeightedMultiStepsState as WeightedMultiStepsState,
    skip_large_updates as skip_large_updates,
    skip_not_finite as skip_not_finite,
)
from ._wrappers.average import (
    AverageState as AverageState,
    SwappedAverage as SwappedAverage,
    averaged_params as averaged_params,
)
from ._wrappers.averages import (
    AveragesState as AveragesState,
    averages as averages,
    swap_averages as swap_averages,
)
from ._wrappers.chain import chain as chain, named_chain as named_chain
from ._wrappers.conditional import (
    ApplyIfFiniteState as ApplyIfFiniteState,
    ConditionallyMaskState as ConditionallyMaskState,
    ConditionallyTransformState as ConditionallyTransformState,
    apply_if_finite as apply_if_finite,
    conditionally_mask as conditionally_mask,
    conditionally_transform as conditionally_transform,
)
from ._wrappers.flatten import flatten as flatten
from ._wrappers.inject import (
    InjectHyperparamsState as InjectHyperparamsState,
    InjectStatefulHyperparamsState as InjectStatefulHyperparamsState,
    inject_hyperparams as inject_hyperparams,
    inject_stateful_hyperparams as inject_stateful_hyperparams,
)
from ._wrappers.lookahead import (
    LookaheadParams as LookaheadParams,
    LookaheadState as LookaheadState,
    lookahead as lookahead,
)
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
from ._wrappers.narrow import with_state_dtypes as with_state_dtypes
from ._wrappers.partition import (
    MaskedState as MaskedState,
    MultiTransformState as MultiTransformState,
    PartitionState as PartitionState,
    freeze as freeze,
    identity as identity,
    masked as masked,
    multi_transform as multi_transform,
    partition as partition,
    selective_transform as selective_transform,
    set_to_zero as set_to_zero,
)
from ._wrappers.rollback import RollbackState as RollbackState, rollback as rollback
from ._wrappers.spikes import (
    SkipSpikesState as SkipSpikesState,
    skip_spikes as skip_spikes,
)
from ._wrappers.stochastic import (
    StochasticRoundingState as StochasticRoundingState,
    stochastic_rounding as stochastic_rounding,
)
from .schedules import (
    constant_schedule as constant_schedule,
    cosine_decay_schedule as cosine_decay_schedule,
    cosine_onecycle_schedule as cosine_onecycle_schedule,
    exponential_decay as exponential_decay,
    join_schedules as join_schedules,
    linear_onecycle_schedule as linear_onecycle_schedule,
    linear_schedule as linear_schedule,
    piecewise_constant_schedule as piecewise_constant_schedule,
    piecewise_interpolate_schedule as piecewise_interpolate_schedule,
    polynomial_schedule as polynomial_schedule,
    sgdr_schedule as sgdr_schedule,
    warmup_constant_schedule as warmup_constant_schedule,
    warmup_cosine_decay_schedule as warmup_cosine_decay_schedule,
    warmup_exponential_decay_schedule as warmup_exponential_decay_schedule,
)
from .tree import (
    bias_correction as bias_correction,
    update_infinity_moment as update_infinity_moment,
    update_moment as update_moment,
    update_moment_per_elem_norm as update_moment_per_elem_norm,
)
from .tree_utils import tree_map_params as tree_map_params


if _typing.TYPE_CHECKING:
    from . import (
        assignment as assignment,
        checkpoint as checkpoint,
        constraints as constraints,
        contrib as contrib,
        distributed as distributed,
        experimental as experimental,
        interop as interop,
        losses as losses,
        metrics as metrics,
        microbatching as microbatching,
        perturbations as perturbations,
        projections as projections,
        prox as prox,
        rules as rules,
        second_order as second_order,
    )
    from ._checkpoint.delta import (
        Delta as Delta,
        apply_delta as apply_delta,
        delta as delta,
    )
    from ._config.from_config import from_config as from_config
    from ._config.to_config import to_config as to_config
    from ._diagnose.diagnose import diagnose as diagnose
    from ._diagnose.findings import Diagnosis as Diagnosis, Finding as Finding
    from ._engine.inspect.describe import describe as describe
    from ._engine.inspect.hyperparams import hyperparams as hyperparams
    from ._functions.fused_scan import FusedScan as FusedScan, fused_scan as fused_scan
    from ._functions.linear_algebra import (
        matrix_inverse_pth_root as matrix_inverse_pth_root,
        nnls as nnls,
        power_iteration as power_iteration,
    )
    from ._functions.multi_normal import multi_normal as multi_normal
    from ._minimize.driver import minimize as minimize
    from ._minimize.quadratic import quadratic_program as quadratic_program
    from ._minimize.result import (
        MinimizeHistory as MinimizeHistory,
        MinimizeResult as MinimizeResult,
        MinimizeStatus as MinimizeStatus,
    )
    from ._minimize.stop import Tolerances as Tolerances
    from ._solve.fixed_point import fixed_point as fixed_point
    from ._solve.implicit import implicit as implicit
    from ._solve.least_squares import least_squares as least_squares
    from ._solve.result import (
        LeastSquaresResult as LeastSquaresResult,
        SolveHistory as SolveHistory,
        SolveResult as SolveResult,
        SolveStatus as SolveStatus,
    )
    from ._solve.root import root as root
    from ._sweep.driver import sweep as sweep
    from ._sweep.fit import SweepFit as SweepFit
    from ._sweep.result import SweepResult as SweepResult
    from .contrib import (
        DifferentiallyPrivateAggregateState as DifferentiallyPrivateAggregateState,
        differentially_private_aggregate as differentially_private_aggregate,
        dpsgd as dpsgd,
    )
    from .losses import (
        convex_kl_divergence as convex_kl_divergence,
        cosine_distance as cosine_distance,
        cosine_similarity as cosine_similarity,
        ctc_loss as ctc_loss,
        ctc_loss_with_forward_probs as ctc_loss_with_forward_probs,
        generalized_kl_divergence as generalized_kl_divergence,
        hinge_loss as hinge_loss,
        huber_loss as huber_loss,
        kl_divergence as kl_divergence,
        l2_loss as l2_loss,
        log_cosh as log_cosh,
        ntxent as ntxent,
        safe_softmax_cross_entropy as safe_softmax_cross_entropy,
        sigmoid_binary_cross_entropy as sigmoid_binary_cross_entropy,
        sigmoid_focal_loss as sigmoid_focal_loss,
        smooth_labels as smooth_labels,
        softmax_cross_entropy as softmax_cross_entropy,
        softmax_cross_entropy_with_integer_labels as softmax_cross_entropy_with_integer_labels,
        squared_error as squared_error,
    )
    from .microbatching import microbatch as microbatch


__version__ = "0.1.0"

_register_states()


# All names above without an underscore, and those that are loaded on first access.
__all__ = sorted(  # pyright: ignore[reportUnsupportedDunderAll] (known when it runs)
    {x for x in globals() if not x.startswith("_")}.union(_LATER, _NAMES_LATER, _MOVED)
)


def __dir__() -> list[str]:
    return [name for name in __all__ if name not in _MOVED]  # accessing these warns


# Hidden from type checkers, which would otherwise accept any misspelt name.
if not _typing.TYPE_CHECKING:

    def __getattr__(name):
        if name in _LATER:
            return _import_module(f"{__name__}.{name}")
        if name in _NAMES_LATER:
            return vars(_import_module(f"{__name__}.{_NAMES_LATER[name]}"))[name]
        if name in _MOVED:
            _warn_deprecated(name)
            return vars(_import_module(f"{__name__}.contrib"))[name]
        raise _import_module(f"{__name__}._names").missing(__name__, name)
