"""Cosines of vectors, and contrastive losses, which pull similar vectors together.

Chen et al., 2020, A Simple Framework for Contrastive Learning of Visual Representations
(arXiv:2002.05709), equation 1, for `ntxent`; Balntas et al., 2016, Learning Local
Feature Descriptors with Triplets and Shallow Convolutional Neural Networks
(DOI:10.5244/C.30.119), section 3, for `triplet_margin_loss`.

Differences from the paper, as in Optax: `ntxent` accepts any number of examples per
class, and contrasts a pair with examples of other classes only.

Differences from Optax: the derivative of a cosine at a zero vector is 0, not NaN, and
norms neither overflow nor underflow; without pairs `ntxent` is 0, not NaN; distances of
0 have derivatives for every `norm_degree`, also with an `eps` of 0; odd and fractional
degrees use absolute values, and a degree of inf works.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from .._engine.arrays.numerics import (
    in_units,
    nan_max_abs,
    norm2,
    quotient,
    safe_sqrt,
)
from .._engine.factories import ranges
from .._engine.functions.calls import explain_misuse
from .inputs import Axis, fit, floats, mask, normal_axes
from .softmax import log_sum_exp


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

    predictions, targets: the vectors p and t, shape [..., size].
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

    Arguments: those of `cosine_similarity`.

    Returns shape [...].  Raises TypeError unless both are floating point,
    ValueError if shapes do not fit.
    """
    return 1 - cosine_similarity(
        predictions, targets, epsilon=epsilon, axis=axis, where=where
    )


def unit(
    x: jax.Array, axes: tuple[int, ...], least: jax.Array | float = 0.0
) -> jax.Array:
    """x / max(‖x‖, least); 0 with derivative 0 where the divisor is 0."""
    return quotient(x, jnp.maximum(norm2(x, axes, keepdims=True), least))


@explain_misuse
def ntxent(
    embeddings: ArrayLike, labels: ArrayLike, temperature: ArrayLike = 0.07
) -> jax.Array:
    """Cross-entropy of identifying one member of each same-class pair by the other.

        s_ij = cos(x_i, x_j) / temperature
        mean of log(exp(s_ij) + Σ exp(s_ik)) - s_ij,   k of other classes than i and j

    embeddings: x, shape [batch, size].
    labels: the class of each embedding, shape [batch].
    temperature: smaller values give more weight to the nearest embeddings; above 0.

    Returns a scalar; 0 without pairs.  Raises TypeError unless the embeddings are of
    floating point, ValueError if shapes do not fit.
    """
    own = {"temperature": ranges.POSITIVE}
    ranges.check("ntxent", {"temperature": temperature}, own)
    x, dtype = floats({"embeddings": embeddings})
    y = jnp.asarray(labels)
    if x.ndim != 2 or y.shape != x.shape[:1]:
        raise ValueError(
            f"`embeddings` has shape {x.shape} and `labels` has shape {y.shape}, "
            "expected [batch, size] and [batch]"
        )
    x = unit(in_units(x, (1,))[0], (1,))  # infinite derivatives cancel no others
    s = jnp.matmul(x, x.T, precision="highest") / jnp.asarray(temperature, x.dtype)
    is_like = y[:, None] == y[None, :]
    is_pair = is_like & ~jnp.eye(len(y), dtype=bool)
    # The log Σ exp of a row; very low without other classes.
    apart = jnp.where(is_like, jnp.finfo(s.dtype).min / 4, s)
    top = jax.lax.stop_gradient(jnp.max(apart, axis=1, keepdims=True, initial=-jnp.inf))
    others = top + log_sum_exp(apart, (1,))[1]
    pairs = jnp.sum(is_pair, dtype=x.dtype)
    losses = jnp.where(is_pair, jax.nn.softplus(others - s), 0)
    return (jnp.sum(losses) / jnp.maximum(pairs, 1)).astype(dtype)


@explain_misuse
def triplet_margin_loss(
    anchors: ArrayLike,
    positives: ArrayLike,
    negatives: ArrayLike,
    axis: Axis = -1,
    norm_degree: ArrayLike = 2,
    margin: ArrayLike = 1.0,
    eps: ArrayLike = 1e-6,
) -> jax.Array:
    """Penalize positives that are not nearer than negatives by a margin.

        d(x) = (Σ |a - x|^norm_degree + eps)^(1 / norm_degree)
        max(0, d(p) - d(n) + margin)

    anchors, positives, negatives: a, p and n, shape [..., size].
    axis: vector axis or axes; `None` for all.
    norm_degree: degree of the norm, above 0; may be inf.
    margin: the distance by which negatives should be further away.
    eps: added to the sum of powers, at least 0.

    Returns shape [...].  Raises TypeError unless all are floating point,
    ValueError if shapes do not fit or the degree is known not to be positive.
    """
    given = {"anchors": anchors, "positives": positives, "negatives": negatives}
    *vectors, dtype = floats(given)
    a, p, n = fit(dict(zip(given, vectors, strict=True)), axis)
    axes = normal_axes(axis, a.ndim)
    eps, margin = (jnp.asarray(z, a.dtype) for z in (eps, margin))
    near, far = (_distance(a - x, axes, norm_degree, eps) for x in (p, n))
    return jnp.maximum(near - far + margin, 0).astype(dtype)


def _distance(x, axes, degree, eps):
    # Large vectors in other units, so that no power overflows.
    unit = jnp.maximum(in_units(x, axes)[1], 1)
    x, unit = x * (1 / unit), jnp.squeeze(unit, axes)
    if isinstance(degree, jax.Array | np.ndarray):
        degree = jnp.asarray(degree, x.dtype)
    return unit * _norm(x, axes, degree, eps / unit**degree)


def _norm(x, axes, degree, eps):
    if isinstance(degree, jax.Array):
        return _power_norm(jnp.abs(x), axes, degree, eps)
    if degree <= 0:
        raise ValueError(f"`norm_degree` is {degree}, expected a number above 0")
    if degree == 2:
        return safe_sqrt(jnp.sum(jnp.square(x), axes) + eps)
    if degree == 1:
        return jnp.sum(jnp.abs(x), axes) + eps
    if degree == np.inf:
        return nan_max_abs(x, axes)
    return _power_norm(jnp.abs(x), axes, degree, eps)


def _power_norm(x, axes, degree, eps):
    return _power(jnp.sum(_power(x, degree), axes) + eps, 1 / degree)


def _power(x, degree):
    """x^degree for x >= 0, with derivative 0 at 0."""
    is_zero = x == 0
    return jnp.where(is_zero, 0, jnp.where(is_zero, 1, x) ** degree)
