"""Optimizers from newer or less widely used papers; this module only lists names."""

import typing as _typing

from ._engine.trees.packed import register_states as _register_states
from ._names import attributes as _attributes
from ._optimizers.adabelief import acprop, scale_by_acprop
from ._optimizers.adagrad import MadgradState, madgrad, scale_by_madgrad
from ._optimizers.adam_mini import AdamMiniState, adam_mini, scale_by_adam_mini
from ._optimizers.ademamix import (
    ScaleByAdemamixState,
    ScaleBySimplifiedAdEMAMixState,
    ademamix,
    scale_by_ademamix,
    scale_by_simplified_ademamix,
    simplified_ademamix,
)
from ._optimizers.adopt import adopt, laprop, scale_by_adopt, scale_by_laprop
from ._optimizers.apollo import APOLLOState, apollo, scale_by_apollo
from ._optimizers.came import CAMEState, came, scale_by_came
from ._optimizers.cautious import (
    cautious,
    cautious_adamw,
    cautious_lion,
    grams,
    scale_by_cautious_adam,
    scale_by_cautious_lion,
    scale_by_grams,
)
from ._optimizers.dadapt import (
    DAdaptAdamWState,
    DAdaptSGDState,
    dadapt_adamw,
    dadapt_sgd,
)
from ._optimizers.dion import (
    Dion2State,
    DionState,
    dion,
    dion2,
    scale_by_dion,
    scale_by_dion2,
)
from ._optimizers.dog import (
    COCOBState,
    DoGState,
    DoWGState,
    cocob,
    dog,
    dowg,
    scale_by_cocob,
)
from ._optimizers.galore import (
    GaLoreDimensionNumbers,
    GaLoreState,
    galore,
    scale_by_galore,
)
from ._optimizers.gauss_newton import GaussNewtonState, gauss_newton
from ._optimizers.gpa import GPAState, gpa, gpa_adamw
from ._optimizers.kl_shampoo import (
    KLShampooState,
    KLSoapState,
    kl_shampoo,
    kl_soap,
    scale_by_kl_shampoo,
    scale_by_kl_soap,
)
from ._optimizers.mars import ScaleByMarsCorrectionState, mars, scale_by_mars_correction
from ._optimizers.momo import MomoAdamState, MomoState, momo, momo_adam
from ._optimizers.muon import MuonDimensionNumbers, MuonState, muon, scale_by_muon
from ._optimizers.normuon import (
    MuownState,
    NorMuonState,
    muown,
    normuon,
    scale_by_normuon,
)
from ._optimizers.private import (
    DifferentiallyPrivateAggregateState,
    differentially_private_aggregate,
    dpsgd,
)
from ._optimizers.prodigy import GrowthLimitedProdigyState, ProdigyState, prodigy
from ._optimizers.psgd_kron import PsgdKronState, psgd_kron, scale_by_psgd_kron
from ._optimizers.radam import schedule_free_radam
from ._optimizers.schedule_free import (
    ScheduleFreeState,
    schedule_free,
    schedule_free_adamw,
    schedule_free_eval_params,
    schedule_free_sgd,
)
from ._optimizers.scion import ScionState, scale_by_scion, scion
from ._optimizers.shampoo import ShampooState, scale_by_shampoo, shampoo
from ._optimizers.soap import SoapState, scale_by_soap, soap
from ._optimizers.sophia import (
    AdaHessianState,
    HutchinsonState,
    SophiaState,
    adahessian,
    hutchinson_estimator_diag_hessian,
    sophia,
)
from ._optimizers.splus import (
    ScaleBySPlusState,
    SPlusAverageState,
    scale_by_splus,
    splus,
)
from ._optimizers.stable_adamw import (
    adam_atan2,
    scale_by_adam_atan2,
    scale_by_stable_adam,
    stable_adamw,
)
from ._transforms.mean import (
    GrokfastEmaState,
    GrokfastMaState,
    grokfast_ema,
    grokfast_ma,
)
from ._transforms.norm import HyperballState, floor_updates, hyperball, radial_brake
from ._transforms.plateau import ReduceLROnPlateauState, reduce_on_plateau
from ._wrappers.diloco import DiLoCoState, StreamingDiLoCoState, diloco
from ._wrappers.ema_nesterov import EmaNesterovState, ema_nesterov
from ._wrappers.flatten import SplitRealAndImaginaryState, split_real_and_imaginary
from ._wrappers.mechanic import MechanicState, mechanize
from ._wrappers.rows import lazy_rows, row_states
from ._wrappers.sam import NormalizeState, SAMState, normalize, sam


_register_states()

__all__ = [
    "APOLLOState", "AdaHessianState", "AdamMiniState", "CAMEState", "COCOBState",
    "DAdaptAdamWState", "DAdaptSGDState", "DiLoCoState",
    "DifferentiallyPrivateAggregateState", "Dion2State", "DionState", "DoGState",
    "DoWGState", "EmaNesterovState", "GPAState", "GaLoreDimensionNumbers",
    "GaLoreState", "GaussNewtonState", "GrokfastEmaState", "GrokfastMaState",
    "GrowthLimitedProdigyState", "HutchinsonState", "HyperballState", "KLShampooState",
    "KLSoapState", "MadgradState", "MechanicState", "MomoAdamState", "MomoState",
    "MuonDimensionNumbers", "MuonState", "MuownState", "NorMuonState", "NormalizeState",
    "ProdigyState", "PsgdKronState", "ReduceLROnPlateauState", "SAMState",
    "SPlusAverageState", "ScaleByAdemamixState", "ScaleByMarsCorrectionState",
    "ScaleBySPlusState", "ScaleBySimplifiedAdEMAMixState", "ScheduleFreeState",
    "ScionState", "ShampooState", "SoapState", "SophiaState",
    "SplitRealAndImaginaryState", "StreamingDiLoCoState", "acprop", "adahessian",
    "adam_atan2", "adam_mini", "ademamix", "adopt", "apollo", "came", "cautious",
    "cautious_adamw", "cautious_lion", "cocob", "dadapt_adamw", "dadapt_sgd",
    "differentially_private_aggregate", "diloco", "dion", "dion2", "dog", "dowg",
    "dpsgd", "ema_nesterov", "floor_updates", "galore", "gauss_newton", "gpa",
    "gpa_adamw", "grams", "grokfast_ema", "grokfast_ma",
    "hutchinson_estimator_diag_hessian", "hyperball", "kl_shampoo", "kl_soap", "laprop",
    "lazy_rows", "madgrad", "mars", "mechanize", "momo", "momo_adam", "muon", "muown",
    "normalize", "normuon", "prodigy", "psgd_kron", "radial_brake", "reduce_on_plateau",
    "row_states", "sam", "scale_by_acprop", "scale_by_adam_atan2", "scale_by_adam_mini",
    "scale_by_ademamix", "scale_by_adopt", "scale_by_apollo", "scale_by_came",
    "scale_by_cautious_adam", "scale_by_cautious_lion", "scale_by_cocob",
    "scale_by_dion", "scale_by_dion2", "scale_by_galore", "scale_by_grams",
    "scale_by_kl_shampoo", "scale_by_kl_soap", "scale_by_laprop", "scale_by_madgrad",
    "scale_by_mars_correction", "scale_by_muon", "scale_by_normuon",
    "scale_by_psgd_kron", "scale_by_scion", "scale_by_shampoo",
    "scale_by_simplified_ademamix", "scale_by_soap", "scale_by_splus",
    "scale_by_stable_adam", "schedule_free", "schedule_free_adamw",
    "schedule_free_eval_params", "schedule_free_radam", "schedule_free_sgd", "scion",
    "shampoo", "simplified_ademamix", "soap", "sophia", "split_real_and_imaginary",
    "splus", "stable_adamw",
]  # fmt: skip

if not _typing.TYPE_CHECKING:
    __dir__, __getattr__ = _attributes(__name__)
