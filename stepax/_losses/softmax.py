"""Softmax cross-entropy, its polynomial variant, ranking, and label smoothing.

Leng et al., 2022, PolyLoss: A Polynomial Expansion Perspective of Classification Loss
Functions (arXiv:2204.12511), equation 3 with N = 1, for `poly_loss_cross_entropy`;
Cao et al., 2007, Learning to Rank: From Pairwise Approach to Listwise Approach
(DOI:10.1145/1273496.1273513), with the relevance used as it is, for ranking; Müller
et al., 2019, When Does Label Smoothing Help? (arXiv:1906.02629), section 1.

Difference from Optax: 0 log 0 = 0 in all these losses, so that a class masked by a
logit of -inf contributes nothing where its label is 0, with finite derivatives in
forward and reverse mode.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._engine.factories import ranges
from .._engine.functions.calls import explain_misuse
from . import inputs


@explain_misuse
def smooth_labels(
    labels: ArrayLike,
    alpha: ArrayLike,
    *,
    axis: inputs.Axis = -1,
    where: ArrayLike | None = None,
) -> jax.Array:
    """Mix labels with the uniform distribution: (1 - alpha) y + alpha / classes.

    labels: y, shape [..., classes].
    alpha: the share of the uniform distribution, in [0, 1]; a scalar, or an array that
        broadcasts to the labels.
    axis: class axis or axes; `None` for all.
    where: which classes to include; broadcast to the labels.

    Returns the shape of the labels.  Raises TypeError unless the labels are of floating
    point, ValueError if shapes do not fit.
    """
    # A negative share sharpens labels that are noisy (Wei et al., arXiv:2106.04149).
    ranges.check("smooth_labels", {"alpha": alpha}, {"alpha": ranges.Range(most=1)})
    y, a, dtype = inputs.floats({"labels": labels}, {"alpha": alpha})
    axes = inputs.normal_axes(axis, y.ndim)
    counts = inputs.mask(where, y.shape)
    if counts is None:
        classes = math.prod(y.shape[i] for i in axes)
    else:
        classes = jnp.sum(counts, axes, keepdims=True, dtype=y.dtype)
    a = inputs.broadcast("alpha", a, y.shape)
    return ((1 - a) * y + a / jnp.maximum(classes, 1)).astype(dtype)


@explain_misuse
def softmax_cross_entropy(
    logits: ArrayLike,
    labels: ArrayLike,
    axis: inputs.Axis = -1,
    where: ArrayLike | None = None,
) -> jax.Array:
    """Cross-entropy between a softmax and distributions.

        -Σ y log softmax(x),   with 0 log 0 = 0

    logits: the logits x, shape [..., classes].
    labels: y, with the same number of classes; probabilities that sum to 1.
    axis: class axis or axes; `None` for all.
    where: which classes to include, shaped like the logits, or which examples, shaped
        like the result; the others contribute 0.

    Returns shape [...].  Raises TypeError unless the logits are floating point,
    ValueError if shapes do not fit.
    """
    x, y, dtype = inputs.floats({"logits": logits}, {"labels": labels})
    x, y, axes = _counted(x, y, axis, where)
    return -jnp.sum(times_log(y, log_softmax(x, axes)), axes).astype(dtype)


@explain_misuse
def safe_softmax_cross_entropy(logits: ArrayLike, labels: ArrayLike) -> jax.Array:
    """Cross-entropy between a softmax and distributions, over the last axis.

    An alias of `softmax_cross_entropy`, which is safe in Stepax.

    logits: shape [..., classes].
    labels: with the same number of classes; probabilities that sum to 1.
    """
    return softmax_cross_entropy(logits, labels)


@explain_misuse
def softmax_cross_entropy_with_integer_labels(
    logits: ArrayLike,
    labels: ArrayLike,
    axis: inputs.Axis = -1,
    where: ArrayLike | None = None,
) -> jax.Array:
    """Softmax cross-entropy where each example belongs to one class.

        log Σ exp x - x_label

    logits: the logits x, shape [..., classes].
    labels: shape [...], integers below the number of classes; negative ones count from
        the end.  With several class axes they index the flattened classes.
    axis: class axis or axes; `None` for all.
    where: which classes to include, shaped like the logits, or which examples, shaped
        like the labels; the loss is 0 where the label is excluded.

    Returns shape [...].  Raises TypeError for other dtypes and ValueError where shapes
    do not fit or a known label is too large; other labels out of range give NaN.
    """
    x, dtype = inputs.floats({"logits": logits})
    axes = inputs.normal_axes(axis, x.ndim)
    counts = inputs.mask(where, x.shape, axes)
    x = _classes_last(x, axes)
    classes = x.shape[-1]
    y = inputs.whole_labels(
        labels, classes, -classes, known=where is None, is_open=True
    )
    shapes = {"labels": y.shape, "logits without classes": x.shape[:-1]}
    batch = inputs.common_shape(shapes)

    def across(x):
        return jnp.broadcast_to(x, batch + x.shape[-1:])

    x, y = across(x), jnp.broadcast_to(y, batch)
    if counts is None:
        return _surprise(x, y).astype(dtype)
    counts = across(_classes_last(counts, axes))
    loss = _surprise(jnp.where(counts, x, -jnp.inf), y)
    is_counted = inputs.at_label(counts, y) & jnp.any(counts, axis=-1)
    return jnp.where(is_counted, loss, 0).astype(dtype)


@explain_misuse
def poly_loss_cross_entropy(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    epsilon: ArrayLike = 2.0,
    axis: inputs.Axis = -1,
    where: ArrayLike | None = None,
) -> jax.Array:
    """Cross-entropy with a modified first polynomial term.

        p = softmax(x)
        -Σ y log p + epsilon Σ y (1 - p)

    Other arguments: those of `softmax_cross_entropy`.
    epsilon: added to the weight of 1 - p, at least -1; the paper uses 2 for images and
        -1 for object detection.

    Returns shape [...].  Raises TypeError unless both are floating point,
    ValueError if shapes do not fit.
    """
    x, y, dtype = inputs.floats({"logits": logits, "labels": labels})
    x, y, axes = _counted(x, y, axis, where)
    log_p = log_softmax(x, axes)
    cross_entropy = -jnp.sum(times_log(y, log_p), axes)
    missed = -jnp.sum(y * jnp.expm1(log_p), axes)
    return (cross_entropy + jnp.asarray(epsilon, x.dtype) * missed).astype(dtype)


def _counted(x, y, axis, where):
    """Logits and labels in one shape, and the class axes; see `_left_out`."""
    x, y = inputs.fit({"logits": x, "labels": y}, axis)
    axes = inputs.normal_axes(axis, x.ndim)
    return *_left_out(x, y, inputs.mask(where, x.shape, axes)), axes


def _left_out(x, y, where):
    """Logits of -inf and labels of 0 where an element is excluded."""
    if where is None:
        return x, y
    return jnp.where(where, x, -jnp.inf), jnp.where(where, y, 0)


def log_softmax(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """log softmax(x); -inf, with finite derivatives, where x is -inf."""
    x, log_sum = log_sum_exp(x, axes)
    return x - log_sum


def log_sum_exp(x: jax.Array, axes: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """x minus its maximum, and log Σ exp of that, with the axes kept.

    An infinite maximum is replaced by a finite value, and the sum, if all of x is -inf,
    by 1; otherwise the sum is at least 1.
    """
    least = jnp.finfo(x.dtype)
    top = jnp.max(x, axes, keepdims=True, initial=least.min)
    x = x - jax.lax.stop_gradient(jnp.minimum(top, least.max))
    total = jnp.sum(jnp.exp(x), axes, keepdims=True)
    return x, jnp.log(jnp.where(total == 0, 1, total))


def times_log(y: jax.Array, log_p: jax.Array) -> jax.Array:
    """y log p, with 0 log 0 = 0."""
    is_empty = (y == 0) & (log_p == -jnp.inf)
    return y * jnp.where(is_empty, 0, log_p)


def _surprise(x, labels):
    x, log_sum = log_sum_exp(x, (x.ndim - 1,))
    return log_sum[..., 0] - inputs.at_label(x, labels)


def _classes_last(x, axes):
    last = tuple(range(x.ndim - len(axes), x.ndim))
    x = jnp.moveaxis(x, axes, last)
    split = x.ndim - len(axes)
    return x.reshape((*x.shape[:split], math.prod(x.shape[split:])))


@explain_misuse
def ranking_softmax_loss(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    where: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    reduce_fn: Callable[..., ArrayLike] | None = jnp.mean,
) -> jax.Array:
    """Cross-entropy between the relevance of items and a softmax of their scores.

        -Σ w y log softmax(s),   with 0 log 0 = 0

    logits: the scores s, shape [..., items].
    labels: the relevance y, at least 0, with the same number of items.
    where: which items to include; broadcast to the logits.
    weights: the weight w of each item; broadcast to the logits.
    reduce_fn: called as `reduce_fn(losses, where=lists)`, where `lists` marks the lists
        with included items, or is `None`; `None` returns the losses, of shape [...].

    Returns the dtype of the logits; the mean over an empty set of lists is 0.  Raises
    TypeError unless the logits are floating point, ValueError if shapes do not fit.
    """
    x, y, _ = inputs.floats({"logits": logits}, {"labels": labels})
    x, y = inputs.fit({"logits": x, "labels": y}, -1)
    if weights is not None:
        w, _ = inputs.floats({}, {"weights": weights})
        y = inputs.broadcast("weights", w.astype(y.dtype), x.shape) * y
    counts = inputs.mask(where, x.shape)
    x, y = _left_out(x, y, counts)
    loss = -jnp.sum(times_log(y, log_softmax(x, (x.ndim - 1,))), axis=-1)
    if reduce_fn is not None:
        lists = None
        if counts is not None:
            lists = jnp.any(counts, axis=-1)
            lists = lists | ~jnp.any(lists)  # if none, all, whose losses are 0
        loss = jnp.asarray(reduce_fn(loss, where=lists))
    return loss.astype(jnp.result_type(logits))
