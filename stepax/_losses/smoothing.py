"""Label smoothing.

Müller et al., 2019, When Does Label Smoothing Help? (arXiv:1906.02629), section 1.
"""

import math

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._engine.factories import ranges
from .._engine.functions.calls import explain_misuse
from .inputs import Axis, broadcast, floats, mask, normal_axes


@explain_misuse
def smooth_labels(
    labels: ArrayLike,
    alpha: ArrayLike,
    *,
    axis: Axis = -1,
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
    ranges.check("smooth_labels", {"alpha": alpha}, {"alpha": ranges.UP_TO_1})
    y, a, dtype = floats({"labels": labels}, {"alpha": alpha})
    axes = normal_axes(axis, y.ndim)
    counts = mask(where, y.shape)
    if counts is None:
        classes = math.prod(y.shape[i] for i in axes)
    else:
        classes = jnp.sum(counts, axes, keepdims=True, dtype=y.dtype)
    a = broadcast("alpha", a, y.shape)
    return ((1 - a) * y + a / jnp.maximum(classes, 1)).astype(dtype)
