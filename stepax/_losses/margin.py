"""Margin losses: hinge and perceptron, for two classes and for many.

Crammer and Singer, 2001, On the Algorithmic Implementation of Multiclass Kernel-based
Vector Machines (JMLR 2), for `multiclass_hinge_loss`; Collins, 2002, Discriminative
Training Methods for Hidden Markov Models (DOI:10.3115/1118693.1118694), for
`multiclass_perceptron_loss`.
"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._engine.arrays.numerics import nan_max
from .._engine.functions.calls import explain_misuse
from .inputs import at_label, check_same_shape, fit, floats, score_at_label


@explain_misuse
def hinge_loss(predictor_outputs: ArrayLike, targets: ArrayLike) -> jax.Array:
    """The elementwise hinge loss: max(0, 1 - y f).

    predictor_outputs: the outputs f.
    targets: y, -1 or 1; broadcast to the shape of the outputs.

    Raises TypeError for complex arrays, ValueError if shapes do not fit.
    """
    f, y, dtype = _real(predictor_outputs, targets)
    f, y = fit({"predictor_outputs": f, "targets": y})
    return jnp.maximum(1 - y * f, 0).astype(dtype)


@explain_misuse
def perceptron_loss(predictor_outputs: ArrayLike, targets: ArrayLike) -> jax.Array:
    """The elementwise perceptron loss: max(0, -y f).

    predictor_outputs: the outputs f.
    targets: y, -1 or 1; shaped like the outputs.

    Raises TypeError for complex arrays, ValueError if the shapes differ.
    """
    f, y, dtype = _real(predictor_outputs, targets)
    check_same_shape(predictor_outputs=f, targets=y)
    return jnp.maximum(-y * f, 0).astype(dtype)


@explain_misuse
def multiclass_hinge_loss(scores: ArrayLike, labels: ArrayLike) -> jax.Array:
    """The hinge loss of the margin between the correct class and the best other class.

        max(0, max 1 + s_j - s_label over j ≠ label)

    scores: the scores s, shape [..., classes].
    labels: shape [...], integers in [0, classes).

    Returns float32 or wider, shape [...].  Raises TypeError for other dtypes,
    ValueError if shapes do not fit or a known label is out of range.
    """
    s, y, _ = _scores(scores, labels)
    is_label = jax.nn.one_hot(y, s.shape[-1], dtype=bool)
    behind = s - at_label(s, y)[..., None]
    return nan_max(jnp.where(is_label, 0, behind + 1), axis=-1)


@explain_misuse
def multiclass_perceptron_loss(scores: ArrayLike, labels: ArrayLike) -> jax.Array:
    """How far the score of the correct class is below the best: max_j s_j - s_label.

    scores: the scores s, shape [..., classes].
    labels: shape [...], integers in [0, classes).

    Returns float32 or wider, shape [...].  Raises TypeError for other dtypes,
    ValueError if shapes do not fit or a known label is out of range.
    """
    s, y, _ = _scores(scores, labels)
    return nan_max(s, axis=-1) - at_label(s, y)


def _real(outputs, targets):
    return floats({}, {"predictor_outputs": outputs, "targets": targets})


def _scores(scores, labels):
    s, dtype = floats({}, {"scores": scores})
    return *score_at_label(s, labels), dtype
