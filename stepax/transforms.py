"""The pieces that optimizers are made of: names only."""

from ._engine.chain import chain as chain, named_chain as named_chain
from ._engine.moments import ema as ema
from ._engine.partition import (
    MaskedState as MaskedState,
    PartitionState as PartitionState,
    freeze as freeze,
    masked as masked,
    partition as partition,
    selective_transform as selective_transform,
)
from ._engine.protocol import MaskedNode as MaskedNode
from ._transforms.accumulate import (
    MultiSteps as MultiSteps,
    MultiStepsState as MultiStepsState,
    ShouldSkipUpdateFunction as ShouldSkipUpdateFunction,
    skip_large_updates as skip_large_updates,
    skip_not_finite as skip_not_finite,
)
from ._transforms.decay import add_decayed_weights as add_decayed_weights
from ._transforms.finite import (
    ApplyIfFiniteState as ApplyIfFiniteState,
    apply_if_finite as apply_if_finite,
)
from .tree import clip as clip
