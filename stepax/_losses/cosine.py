"""Cosine similarity and cosine distance.

Difference from Optax: the derivative at a zero vector is 0, not NaN, and norms neither
overflow nor underflow.
"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._engine.arrays.numerics import safe_sqrt
from .._engine.functions.calls import explain_misuse
from .inputs import Axis, fit, floats, mask, normal_axes


@explain_misuse
def cosine_similarity(
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    epsilon: ArrayLike = 0.0,
    axis: Axis = -1,
    where: ArrayLike | None = None,
) -> jax.Array:
    """The cosine of the angle between vectors.

        p·t / sqrt(max(‖p‖², epsilon) max(‖t‖², epsilon)),   0 where a vector is 0

    predictions, targets: p and t, shape [..., size].
    epsilon: lower bound of the squared norms in the divisor, at least 0.
    axis: vector axis or axes; `None` for all.
    where: which elements to include; broadcast to the predictions.

    Returns shape [...].  Raises TypeError unless both are floating point,
    ValueError if shapes do not fit.
    """
    p, t, dtype = floats({"predictions": predictions, "targets": targets})
    p, t = fit({"predictions": p, "targets": t}, axis)
    counts, axes = mask(where, p.shape), normal_axes(axis, p.ndim)
    if counts is not None:
        p, t = (jnp.where(counts, x, 0) for x in (p, t))
    least = jnp.sqrt(jnp.asarray(epsilon, p.dtype))
    return jnp.sum(unit(p, axes, least) * unit(t, axes, least), axes).astype(dtype)


@explain_misuse
def cosine_distance(
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    epsilon: ArrayLike = 0.0,
    axis: Axis = -1,
    where: ArrayLike | None = None,
) -> jax.Array:
    """1 minus the cosine of the angle between vectors; 0 for parallel vectors.

    predictions, targets: the vectors, shape [..., size].
    epsilon: lower bound of the squared norms in the divisor, at least 0.
    axis: vector axis or axes; `None` for all.
    where: which elements to include; broadcast to the predictions.

    Returns shape [...].  Raises TypeError unless both are floating point,
    ValueError if shapes do not fit.
    """
    return 1 - cosine_similarity(
        predictions, targets, epsilon=epsilon, axis=axis, where=where
    )


def unit(
    x: jax.Array, axes: tuple[int, ...], least: jax.Array | float = 0.0
) -> jax.Array:
    """x / max(‖x‖, least); 0 with derivative 0 where the divisor is 0.

    x is first divided by its largest element, so that no square over- or underflows.
    """
    tiny = jnp.finfo(x.dtype).tiny
    size = jax.lax.stop_gradient(jnp.max(jnp.abs(x), axes, keepdims=True, initial=0))
    # Multiply by 1 / size, which is finite: XLA would merge quotients to x² / size².
    inverse = 1 / jnp.where(size < tiny, 1, jnp.minimum(size, 1 / (4 * tiny)))
    x = x * inverse
    norm = safe_sqrt(jnp.sum(jnp.square(x), axes, keepdims=True))
    norm = jnp.maximum(norm, least * inverse)
    return x / jnp.where(norm == 0, jnp.inf, norm)
