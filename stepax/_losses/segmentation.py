"""Dice losses: 1 minus the overlap of predicted and true regions.

Milletari et al., 2016, V-Net (arXiv:1606.04797), section 3; for weights of false
positives and false negatives, Salehi et al., 2017, Tversky loss function for image
segmentation (arXiv:1706.05721), equation 4; for weights of classes, Sudre et al., 2017,
Generalised Dice overlap as a deep learning loss function for highly unbalanced
segmentations (arXiv:1707.03237).

Difference from Sudre et al., as in Optax: the weights apply to the losses of the
classes, not inside one ratio.

Differences from Optax: probabilities of a single class are accepted; the check of
probabilities does not fail under transformations; two empty regions have loss 0 even if
`smooth` is 0.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from .._engine.arrays.numerics import is_known, safe_divide
from .._engine.functions.calls import explain_misuse
from .._engine.trees.errors import require_one_of
from .inputs import check_same_shape, floating, floats, normal_axes
from .softmax import log_softmax


# Lower bound of the size of a class, in pixels, when weights are computed.
_RAREST = 1e-6


@explain_misuse
def dice_loss(
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    class_weights: ArrayLike | None = None,
    smooth: ArrayLike = 1.0,
    alpha: ArrayLike = 0.5,
    beta: ArrayLike = 0.5,
    apply_softmax: bool = True,
    reduction: str = "mean",
    ignore_background: bool = False,
    axis: int | Sequence[int] | None = None,
) -> jax.Array:
    """1 minus the overlap of predicted and true regions, for each class.

        miss = alpha Σ p (1 - t) + beta Σ t (1 - p)
        miss / (Σ p t + miss + smooth)

    predictions: logits of p, shape [batch, ..., classes]; for a single class, whose p
        is a sigmoid, the last axis may be missing.
    targets: t, in [0, 1], of the same shape.
    class_weights: weights of the classes, shape [classes].
    smooth: added to the overlap, at least 0.
    alpha, beta: costs of false positives and false negatives, at least 0.
    apply_softmax: if false, the predictions are p, which sum to 1 over the classes.
    reduction: reduction over the classes: "mean", "sum" or "none".
    ignore_background: whether to exclude class 0, if there are others.
    axis: the axes of a region; `None` for all but the first and the last.

    Raises ValueError if shapes do not fit or known predictions are not probabilities.
    """
    require_one_of("reduction", reduction, _REDUCTIONS)
    p, t, dtype = _same_classes(predictions, targets)
    p = _probabilities(p) if apply_softmax else _checked(p, dtype)
    weights = _weights(class_weights, p)
    if ignore_background and p.shape[-1] > 1:
        p, t, weights = p[..., 1:], t[..., 1:], weights[..., 1:]
    axes = tuple(range(1, p.ndim - 1)) if axis is None else _axes(axis, p, reduction)
    loss = _losses(p, t, axes, smooth, alpha, beta)
    if class_weights is not None:
        loss = loss * weights.reshape((1,) * (loss.ndim - 1) + (-1,))
    if reduction != "none":
        loss = jnp.mean(loss, -1) if reduction == "mean" else jnp.sum(loss, -1)
    return loss.astype(dtype)


@explain_misuse
def multiclass_generalized_dice_loss(
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    smooth: ArrayLike = 1.0,
    apply_softmax: bool = True,
    ignore_background: bool = False,
) -> jax.Array:
    """The Dice loss with classes weighted by their rarity.

        w = 1 / (Σ t)², over the batch too, scaled so that the mean of w is 1
        mean of w dice_loss, over classes and batch

    predictions: logits, shape [batch, ..., classes].
    targets: t, in [0, 1], of the same shape.  Absent classes take all the weight.
    smooth: added to the overlap, at least 0.
    apply_softmax: if false, the predictions are probabilities over the classes.
    ignore_background: whether to exclude class 0, after the weights are computed.

    Returns a scalar.  Raises ValueError if shapes do not fit or known predictions
    are not probabilities.
    """
    p, t, dtype = _same_classes(predictions, targets)
    pixels = jnp.sum(t, tuple(range(t.ndim - 1)))
    pixels = jnp.maximum(pixels, _RAREST)
    rarity = jnp.square(jnp.min(pixels, initial=jnp.inf) / pixels)
    loss = dice_loss(
        p,
        t,
        class_weights=rarity / jnp.mean(rarity),
        smooth=smooth,
        apply_softmax=apply_softmax,
        ignore_background=ignore_background,
    )
    return jnp.mean(loss).astype(dtype)


@explain_misuse
def binary_dice_loss(
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    smooth: ArrayLike = 1.0,
    apply_sigmoid: bool = True,
) -> jax.Array:
    """The Dice loss of a single region.

        miss = (Σ p (1 - t) + Σ t (1 - p)) / 2
        miss / (Σ p t + miss + smooth)

    predictions: logits of p, shape [batch, ...] or [batch, ..., 1].
    targets: t, in [0, 1], of either shape.
    smooth: added to the overlap, at least 0.
    apply_sigmoid: if false, the predictions are p.

    Returns shape [batch].  Raises ValueError if shapes do not fit or known predictions
    are not probabilities.
    """
    p, t = jnp.asarray(predictions), jnp.asarray(targets)
    if p.ndim == t.ndim and p.shape[-1:] != (1,):
        p, t = p[..., None], t[..., None]
    return dice_loss(p, t, smooth=smooth, apply_softmax=apply_sigmoid)


_REDUCTIONS = "mean", "sum", "none"


def _same_classes(predictions, targets):
    """Both with a class axis, broadcast to one shape."""
    p, t, dtype = floats({}, {"predictions": predictions, "targets": targets})
    if p.ndim + 1 == t.ndim:
        p = p[..., None]
    elif t.ndim + 1 == p.ndim:
        t = t[..., None]
    check_same_shape(predictions=p, targets=t)
    if p.ndim == 0:
        raise ValueError("`predictions` has shape (), expected [batch, ..., classes]")
    return p, t, floating(dtype)


def _probabilities(x):
    if x.shape[-1] == 1:
        return jax.nn.sigmoid(x)
    return jnp.exp(log_softmax(x, (x.ndim - 1,)))


def _checked(p, dtype):
    """Probabilities, checked if they are concrete."""
    if p.size == 0 or not is_known(p):
        return p
    is_single = p.shape[-1] == 1
    total = np.asarray(p) if is_single else np.asarray(p).sum(-1)
    low, high = total.min(), total.max()
    tolerance = max(1e-3, 4 * float(jnp.finfo(dtype).eps))
    if low < (0 if is_single else 1) - tolerance or high > 1 + tolerance:
        what = "values" if is_single else "sums over the classes"
        raise ValueError(
            f"`predictions` has {what} from {low} to {high}, "
            "expected valid probability distributions where `apply_softmax` or "
            "`apply_sigmoid` is false"
        )
    return p


def _weights(class_weights, p):
    classes = p.shape[-1:]
    if class_weights is None:
        return jnp.ones(classes, p.dtype)
    weights = jnp.asarray(class_weights)
    weights = jnp.broadcast_to(weights, classes) if weights.size == 1 else weights
    if weights.shape != classes:
        raise ValueError(
            f"`class_weights` has shape {weights.shape}, expected the shape of the "
            f"classes, {classes}"
        )
    return weights.astype(p.dtype)


def _axes(axis, p, reduction):
    axes = normal_axes(axis if isinstance(axis, int) else tuple(axis), p.ndim)
    if p.ndim - 1 in axes and reduction != "none":
        raise ValueError(
            f"`axis` is {axis}, expected axes other than the class axis, which "
            f"`reduction` {reduction!r} reduces"
        )
    return axes


def _losses(p, t, axes, smooth, alpha, beta):
    smooth, alpha, beta = (jnp.asarray(x, p.dtype) for x in (smooth, alpha, beta))
    false_positive = jnp.sum(p * (1 - t), axes)
    false_negative = jnp.sum(t * (1 - p), axes)
    miss = alpha * false_positive + beta * false_negative
    total = jnp.sum(p * t, axes) + miss + smooth
    return safe_divide(miss, jnp.where(total == 0, 1, total))
