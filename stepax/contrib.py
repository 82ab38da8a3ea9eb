"""Optimizers from newer or less travelled papers: names only."""

from ._optimizers.dadapt import (
    DAdaptAdamWState as DAdaptAdamWState,
    dadapt_adamw as dadapt_adamw,
)
from ._optimizers.dog import (
    DoGState as DoGState,
    DoWGState as DoWGState,
    dog as dog,
    dowg as dowg,
)
from ._optimizers.mechanic import MechanicState as MechanicState, mechanize as mechanize
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
from ._optimizers.prodigy import ProdigyState as ProdigyState, prodigy as prodigy
from ._optimizers.sam import (
    NormalizeState as NormalizeState,
    SAMState as SAMState,
    normalize as normalize,
    sam as sam,
)
from ._optimizers.schedule_free import (
    ScheduleFreeState as ScheduleFreeState,
    schedule_free as schedule_free,
    schedule_free_adamw as schedule_free_adamw,
    schedule_free_eval_params as schedule_free_eval_params,
    schedule_free_sgd as schedule_free_sgd,
)
from ._transforms.plateau import (
    ReduceLROnPlateauState as ReduceLROnPlateauState,
    reduce_on_plateau as reduce_on_plateau,
)
