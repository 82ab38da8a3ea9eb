"""Losses; this module only lists names."""

import typing as _typing

from ._losses.binary import sigmoid_binary_cross_entropy, sigmoid_focal_loss
from ._losses.contrastive import (
    cosine_distance,
    cosine_similarity,
    ntxent,
    triplet_margin_loss,
)
from ._losses.ctc import ctc_loss, ctc_loss_with_forward_probs
from ._losses.divergence import (
    convex_kl_divergence,
    generalized_kl_divergence,
    kl_divergence,
    kl_divergence_with_log_targets,
)
from ._losses.margin import (
    hinge_loss,
    make_fenchel_young_loss,
    multiclass_hinge_loss,
    multiclass_perceptron_loss,
    multiclass_sparsemax_loss,
    perceptron_loss,
    sparsemax_loss,
)
from ._losses.regression import huber_loss, l2_loss, log_cosh, squared_error
from ._losses.segmentation import (
    binary_dice_loss,
    dice_loss,
    multiclass_generalized_dice_loss,
)
from ._losses.softmax import (
    poly_loss_cross_entropy,
    ranking_softmax_loss,
    safe_softmax_cross_entropy,
    smooth_labels,
    softmax_cross_entropy,
    softmax_cross_entropy_with_integer_labels,
)
from ._names import attributes as _attributes


__all__ = [
    "binary_dice_loss", "convex_kl_divergence", "cosine_distance", "cosine_similarity",
    "ctc_loss", "ctc_loss_with_forward_probs", "dice_loss", "generalized_kl_divergence",
    "hinge_loss", "huber_loss", "kl_divergence", "kl_divergence_with_log_targets",
    "l2_loss", "log_cosh", "make_fenchel_young_loss",
    "multiclass_generalized_dice_loss", "multiclass_hinge_loss",
    "multiclass_perceptron_loss", "multiclass_sparsemax_loss", "ntxent",
    "perceptron_loss", "poly_loss_cross_entropy", "ranking_softmax_loss",
    "safe_softmax_cross_entropy", "sigmoid_binary_cross_entropy", "sigmoid_focal_loss",
    "smooth_labels", "softmax_cross_entropy",
    "softmax_cross_entropy_with_integer_labels", "sparsemax_loss", "squared_error",
    "triplet_margin_loss",
]  # fmt: skip

if not _typing.TYPE_CHECKING:
    __dir__, __getattr__ = _attributes(__name__)
