"""Optimizers from newer or less widely used papers; this module only lists names."""

import typing as _typing

from ._engine.trees.exported import register_states as _register_states
from ._names import attributes as _attributes
from ._optimizers.adabelief import acprop as acprop, scale_by_acprop as scale_by_acprop
from ._optimizers.adahessian import (
    AdaHessianState as AdaHessianState,
    adahessian as adahessian,
)
from ._optimizers.adam_mini import (
    AdamMiniState as AdamMiniState,
    adam_mini as adam_mini,
    scale_by_adam_mini as scale_by_adam_mini,
)
from ._optimizers.ademamix import (
    ScaleByAdemamixState as ScaleByAdemamixState,
    ScaleBySimplifiedAdEMAMixState as ScaleBySimplifiedAdEMAMixState,
    ademamix as ademamix,
    scale_by_ademamix as scale_by_ademamix,
    scale_by_simplified_ademamix as scale_by_simplified_ademamix,
    simplified_ademamix as simplified_ademamix,
)
from ._optimizers.adopt import (
    adopt as adopt,
    laprop as laprop,
    scale_by_adopt as scale_by_adopt,
    scale_by_laprop as scale_by_laprop,
)
from ._optimizers.apollo import (
    APOLLOState as APOLLOState,
    apollo as apollo,
    scale_by_apollo as scale_by_apollo,
)
from ._optimizers.came import (
    CAMEState as CAMEState,
    came as came,
    scale_by_came as scale_by_came,
)
from ._optimizers.cautious import (
    cautious as cautious,
    cautious_adamw as cautious_adamw,
    cautious_lion as cautious_lion,
    grams as grams,
    scale_by_cautious_adam as scale_by_cautious_adam,
    scale_by_cautious_lion as scale_by_cautious_lion,
    scale_by_grams as scale_by_grams,
)
from ._optimizers.cocob import (
    COCOBState as COCOBState,
    cocob as cocob,
    scale_by_cocob as scale_by_cocob,
)
from ._optimizers.dadapt import (
    DAdaptAdamWState as DAdaptAdamWState,
    DAdaptSGDState as DAdaptSGDState,
    dadapt_adamw as dadapt_adamw,
    dadapt_sgd as dadapt_sgd,
)
from ._optimizers.dion import (
    Dion2State as Dion2State,
    DionState as DionState,
    dion as dion,
    dion2 as dion2,
    scale_by_dion as scale_by_dion,
    scale_by_dion2 as scale_by_dion2,
)
from ._optimizers.dog import (
    DoGState as DoGState,
    DoWGState as DoWGState,
    dog as dog,
    dowg as dowg,
)
from ._optimizers.galore import (
    GaLoreDimensionNumbers as GaLoreDimensionNumbers,
    GaLoreState as GaLoreState,
    galore as galore,
    scale_by_galore as scale_by_galore,
)
from ._optimizers.gauss_newton import (
    GaussNewtonState as GaussNewtonState,
    gauss_newton as gauss_newton,
)
from ._optimizers.gpa import (
    GPAState as GPAState,
    gpa as gpa,
    gpa_adamw as gpa_adamw,
    gpa_eval_params as gpa_eval_params,
)
from ._optimizers.kl_shampoo import (
    KLShampooState as KLShampooState,
    KLSoapState as KLSoapState,
    kl_shampoo as kl_shampoo,
    kl_soap as kl_soap,
    scale_by_kl_shampoo as scale_by_kl_shampoo,
    scale_by_kl_soap as scale_by_kl_soap,
)
from ._optimizers.madgrad import (
    MadgradState as MadgradState,
    madgrad as madgrad,
    scale_by_madgrad as scale_by_madgrad,
)
from ._optimizers.mars import (
    ScaleByMarsCorrectionState as ScaleByMarsCorrectionState,
    mars as mars,
    scale_by_mars_correction as scale_by_mars_correction,
)
from ._optimizers.momo import (
    MomoAdamState as MomoAdamState,
    MomoState as MomoState,
    momo as momo,
    momo_adam as momo_adam,
)
from ._optimizers.muon import (
    MuonDimensionNumbers as MuonDimensionNumbers,
    MuonState as MuonState,
    muon as muon,
    scale_by_muon as scale_by_muon,
)
from ._optimizers.normuon import (
    MuownState as MuownState,
    NorMuonState as NorMuonState,
    muown as muown,
    normuon as normuon,
    scale_by_normuon as scale_by_normuon,
)
from ._optimizers.private import (
    DifferentiallyPrivateAggregateState as DifferentiallyPrivateAggregateState,
    differentially_private_aggregate as differentially_private_aggregate,
    dpsgd as dpsgd,
)
from ._optimizers.prodigy import (
    GrowthLimitedProdigyState as GrowthLimitedProdigyState,
    ProdigyState as ProdigyState,
    prodigy as prodigy,
)
from ._optimizers.psgd_kron import (
    PsgdKronState as PsgdKronState,
    psgd_kron as psgd_kron,
    scale_by_psgd_kron as scale_by_psgd_kron,
)
from ._optimizers.radam import (
    schedule_free_radam as schedule_free_radam,
)
from ._optimizers.schedule_free import (
    ScheduleFreeState as ScheduleFreeState,
    schedule_free as schedule_free,
    schedule_free_adamw as schedule_free_adamw,
    schedule_free_eval_params as schedule_free_eval_params,
    schedule_free_sgd as schedule_free_sgd,
)
from ._optimizers.scion import (
    ScionState as ScionState,
    scale_by_scion as scale_by_scion,
    scion as scion,
)
from ._optimizers.shampoo import (
    ShampooState as ShampooState,
    scale_by_shampoo as scale_by_shampoo,
    shampoo as shampoo,
)
from ._optimizers.soap import (
    SoapState as SoapState,
    scale_by_soap as scale_by_soap,
    soap as soap,
)
from ._optimizers.sophia import (
    HutchinsonState as HutchinsonState,
    SophiaState as SophiaState,
    hutchinson_estimator_diag_hessian as hutchinson_estimator_diag_hessian,
    sophia as sophia,
)
from ._optimizers.splus import (
    ScaleBySPlusState as ScaleBySPlusState,
    SPlusAverageState as SPlusAverageState,
    scale_by_splus as scale_by_splus,
    splus as splus,
    splus_eval_params as splus_eval_params,
)
from ._optimizers.stable_adamw import (
    adam_atan2 as adam_atan2,
    scale_by_adam_atan2 as scale_by_adam_atan2,
    scale_by_stable_adam as scale_by_stable_adam,
    stable_adamw as stable_adamw,
)
from ._transforms.grokfast import (
    GrokfastEmaState as GrokfastEmaState,
    GrokfastMaState as GrokfastMaState,
    grokfast_ema as grokfast_ema,
    grokfast_ma as grokfast_ma,
)
from ._transforms.norm import (
    HyperballState as HyperballState,
    floor_updates as floor_updates,
    hyperball as hyperball,
    radial_brake as radial_brake,
)
from ._transforms.plateau import (
    ReduceLROnPlateauState as ReduceLROnPlateauState,
    reduce_on_plateau as reduce_on_plateau,
)
from ._wrappers.ema_nesterov import (
    EmaNesterovState as EmaNesterovState,
    ema_nesterov as ema_nesterov,
    ema_nesterov_eval_params as ema_nesterov_eval_params,
)
from ._wrappers.mechanic import MechanicState as MechanicState, mechanize as mechanize
from ._wrappers.outer import (
    OuterState as OuterState,
    StreamingOuterState as StreamingOuterState,
    outer as outer,
)
from ._wrappers.rows import lazy as lazy, rowwise as rowwise
from ._wrappers.sam import (
    NormalizeState as NormalizeState,
    SAMState as SAMState,
    normalize as normalize,
    sam as sam,
)
from ._wrappers.split_complex import (
    SplitRealAndImaginaryState as SplitRealAndImaginaryState,
    split_real_and_imaginary as split_real_and_imaginary,
)


_register_states()

__all__ = [  # pyright: ignore[reportUnsupportedDunderAll] (known when it runs)
    name for name in globals() if not name.startswith("_")
]

if not _typing.TYPE_CHECKING:
    __dir__, __getattr__ = _attributes(__name__)
