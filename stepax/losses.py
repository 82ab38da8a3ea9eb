"""Losses; this module only lists names."""

import typing as _typing

from ._losses.binary import (
    sigmoid_binary_cross_entropy as sigmoid_binary_cross_entropy,
    sigmoid_focal_loss as sigmoid_focal_loss,
)
from ._losses.contrastive import (
    cosine_distance as cosine_distance,
    cosine_similarity as cosine_similarity,
    ntxent as ntxent,
    triplet_margin_loss as triplet_margin_loss,
)
from ._losses.ctc import (
    ctc_loss as ctc_loss,
    ctc_loss_with_forward_probs as ctc_loss_with_forward_probs,
)
from ._losses.divergence import (
    convex_kl_divergence as convex_kl_divergence,
    generalized_kl_divergence as generalized_kl_divergence,
    kl_divergence as kl_divergence,
    kl_divergence_with_log_targets as kl_divergence_with_log_targets,
)
from ._losses.margin import (
    hinge_loss as hinge_loss,
    make_fenchel_young_loss as make_fenchel_young_loss,
    multiclass_hinge_loss as multiclass_hinge_loss,
    multiclass_perceptron_loss as multiclass_perceptron_loss,
    multiclass_sparsemax_loss as multiclass_sparsemax_loss,
    perceptron_loss as perceptron_loss,
    sparsemax_loss as sparsemax_loss,
)
from ._losses.regression import (
    huber_loss as huber_loss,
    l2_loss as l2_loss,
    log_cosh as log_cosh,
    squared_error as squared_error,
)
from ._losses.segmentation import (
    binary_dice_loss as binary_dice_loss,
    dice_loss as dice_loss,
    multiclass_generalized_dice_loss as multiclass_generalized_dice_loss,
)
from ._losses.softmax import (
    poly_loss_cross_entropy as poly_loss_cross_entropy,
    ranking_softmax_loss as ranking_softmax_loss,
    safe_softmax_cross_entropy as safe_softmax_cross_entropy,
    smooth_labels as smooth_labels,
    softmax_cross_entropy as softmax_cross_entropy,
    softmax_cross_entropy_with_integer_labels as softmax_cross_entropy_with_integer_labels,
)
from ._names import attributes as _attributes


__all__ = [  # pyright: ignore[reportUnsupportedDunderAll] (known when it runs)
    name for name in globals() if not name.startswith("_")
]

if not _typing.TYPE_CHECKING:
    __dir__, __getattr__ = _attributes(__name__)
