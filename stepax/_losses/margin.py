"""Losses of scores: hinge, perceptron, sparsemax and Fenchel-Young.

Crammer and Singer, 2001, On the Algorithmic Implementation of Multiclass Kernel-based
Vector Machines (JMLR 2), for `multiclass_hinge_loss`; Collins, 2002, Discriminative
Training Methods for Hidden Markov Models (DOI:10.3115/1118693.1118694), for
`multiclass_perceptron_loss`; Martins and Astudillo, 2016, From Softmax to Sparsemax: A
Sparse Model of Attention and Multi-Label Classification (arXiv:1602.02068), equation 16
and algorithm 1, whose probabilities can be exactly 0; Blondel et al., 2020, Learning
with Fenchel-Young Losses (JMLR 21, arXiv:1901.02324), section 4.4, for sparsemax of two
classes, and definition 2, without the term that only depends on the targets.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._engine.arrays.numerics import nan_max
from .._engine.functions.calls import explain_misuse
from . import inputs
from .softmax import times_log


@explain_misuse
def hinge_loss(predictor_outputs: ArrayLike, targets: ArrayLike) -> jax.Array:
    """The elementwise hinge loss: max(0, 1 - y f).

    predictor_outputs: the outputs f.
    targets: y, -1 or 1; broadcast to the shape of the outputs.

    Raises TypeError for complex arrays, ValueError if shapes do not fit.
    """
    f, y, dtype = _real(predictor_outputs, targets)
    f, y = inputs.fit({"predictor_outputs": f, "targets": y})
    return jnp.maximum(1 - y * f, 0).astype(dtype)


@explain_misuse
def perceptron_loss(predictor_outputs: ArrayLike, targets: ArrayLike) -> jax.Array:
    """The elementwise perceptron loss: max(0, -y f).

    predictor_outputs: the outputs f.
    targets: y, -1 or 1; shaped like the outputs.

    Raises TypeError for complex arrays, ValueError if the shapes differ.
    """
    f, y, dtype = _real(predictor_outputs, targets)
    inputs.check_same_shape(predictor_outputs=f, targets=y)
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
    s, y = _scores(scores, labels)
    is_label = jax.nn.one_hot(y, s.shape[-1], dtype=bool)
    behind = s - inputs.at_label(s, y)[..., None]
    return nan_max(jnp.where(is_label, 0, behind + 1), axis=-1)


@explain_misuse
def multiclass_perceptron_loss(scores: ArrayLike, labels: ArrayLike) -> jax.Array:
    """How far the score of the correct class is below the best: max_j s_j - s_label.

    Arguments: those of `multiclass_hinge_loss`.

    Returns float32 or wider, shape [...].  Raises TypeError for other dtypes,
    ValueError if shapes do not fit or a known label is out of range.
    """
    s, y = _scores(scores, labels)
    return nan_max(s, axis=-1) - inputs.at_label(s, y)


def _real(outputs, targets):
    return inputs.floats({}, {"predictor_outputs": outputs, "targets": targets})


def _scores(scores, labels):
    """Scores [..., classes] and integer labels [...], with a common leading shape."""
    s, _ = inputs.floats({}, {"scores": scores})
    if s.ndim == 0 or s.shape[-1] == 0:
        raise ValueError(f"scores have shape {s.shape}, expected [..., classes]")
    y = inputs.whole_labels(labels, s.shape[-1])
    shapes = {"labels": y.shape, "scores without classes": s.shape[:-1]}
    batch = inputs.common_shape(shapes)
    return jnp.broadcast_to(s, batch + s.shape[-1:]), jnp.broadcast_to(y, batch)


@explain_misuse
def sparsemax_loss(logits: ArrayLike, labels: ArrayLike) -> jax.Array:
    """The elementwise sparsemax loss of two classes.

        z = x where the label is 0, -x where it is 1
        0 for z <= -1, z for z >= 1, (z + 1)² / 4 between

    logits: the logits x.
    labels: 0 or 1; broadcast to the shape of the logits.

    Returns the dtype of the logits, float32 for integers.  Raises TypeError for complex
    logits, ValueError if shapes do not fit or a known integer label is not 0 or 1.
    """
    x, dtype = inputs.floats({}, {"logits": logits})
    y = jnp.asarray(labels)
    if jnp.issubdtype(y.dtype, jnp.integer):
        inputs.whole_labels(labels, 2)
    x, y = inputs.fit({"logits": x, "labels": y})
    loss = jax.nn.sparse_plus(jnp.where(y != 0, -x, x))
    return loss.astype(inputs.floating(dtype))


@explain_misuse
def multiclass_sparsemax_loss(scores: ArrayLike, labels: ArrayLike) -> jax.Array:
    """The sparsemax loss of many classes.

        p = the distribution nearest to s
        p·s - ‖p‖²/2 + 1/2 - s_label

    Arguments: those of `multiclass_hinge_loss`.

    Returns float32 or wider, shape [...].  Raises TypeError for other dtypes,
    ValueError if shapes do not fit or a known label is out of range.
    """
    s, y = _scores(scores, labels)
    # The loss is invariant to a shift of all scores; shifted scores do not overflow.
    s = s - jax.lax.stop_gradient(nan_max(s, -1, keepdims=True))
    p = _sparsemax(s)
    best = jnp.sum(p * jnp.where(p > 0, s, 0) - jnp.square(p) / 2, axis=-1)
    return best + 0.5 - inputs.at_label(s, y)


def _sparsemax(s):
    """The distribution nearest to the scores, whose maximum is 0."""
    ordered = jnp.flip(jnp.sort(jax.lax.stop_gradient(s), axis=-1), axis=-1)
    rank = jax.lax.broadcasted_iota(s.dtype, s.shape, s.ndim - 1) + 1
    is_in = 1 + rank * ordered > jnp.cumsum(ordered, axis=-1)
    least = jnp.min(jnp.where(is_in, ordered, 0), axis=-1, keepdims=True)
    support = s >= least
    count = jnp.sum(support, axis=-1, keepdims=True, dtype=s.dtype)
    # At least one element, the largest, is in the support.
    tau = (jnp.sum(jnp.where(support, s, 0), axis=-1, keepdims=True) - 1) / count
    return jnp.where(support, s - tau, 0)


@explain_misuse
def make_fenchel_young_loss(
    max_fun: Callable[..., ArrayLike],
) -> Callable[..., jax.Array]:
    """The loss whose gradient is the argmax of `max_fun`, minus the target.

        max_fun(s) - s·t

    max_fun: a convex function of a vector, such as `jax.nn.logsumexp`.

    Returns a function of scores s and targets t, shape [..., size] each, that passes
    other arguments on to `max_fun` and returns shape [...]; it raises ValueError if
    shapes do not fit.
    """

    def fenchel_young_loss(
        scores: ArrayLike, targets: ArrayLike, *args: Any, **kwargs: Any
    ) -> jax.Array:
        s, t, dtype = inputs.floats({}, {"scores": scores, "targets": targets})
        s, t = inputs.fit({"scores": s, "targets": t}, -1)
        largest = jnp.vectorize(
            lambda s: max_fun(s, *args, **kwargs), signature="(n)->()"
        )(s)
        loss = largest - jnp.sum(times_log(t, s), axis=-1)
        return loss.astype(inputs.floating(dtype))

    return fenchel_young_loss
