"""Kullback-Leibler divergences.

Kullback and Leibler, 1951, On Information and Sufficiency
(DOI:10.1214/aoms/1177729694); for measures that are not normalized Bregman, 1967, The
relaxation method of finding the common point of convex sets
(DOI:10.1016/0041-5553(67)90040-7).

Difference from Optax: 0 log 0 = 0 everywhere, with finite derivatives of both modes:
targets of 0 and log targets of -inf cost nothing, whatever is predicted for them.
"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._engine.arrays.numerics import safe_log
from .._engine.functions import deprecations
from .._engine.functions.calls import explain_misuse
from .inputs import Axis, fit, floats, mask, normal_axes
from .softmax import times_log


@explain_misuse
def kl_divergence(
    log_predictions: ArrayLike,
    targets: ArrayLike,
    axis: Axis = -1,
    where: ArrayLike | None = None,
) -> jax.Array:
    """What coding the targets by the predictions costs: Σ t (log t - log p).

    log_predictions: log p, shape [..., classes].
    targets: t, at least 0, of the same number of classes.  The derivative in a target
        of 0, which is -inf, is taken to be -log p.
    axis: the axis or axes of the classes; `None` for all.
    where: which elements count; broadcast to the predictions.

    Returns shape [...].  Raises TypeError unless both are of floating point,
    ValueError where shapes do not fit.
    """
    log_p, t, counts, axes, dtype = _given(log_predictions, targets, axis, where)
    return jnp.sum(_relative(log_p, t), axes, where=counts).astype(dtype)


@explain_misuse
def kl_divergence_with_log_targets(
    log_predictions: ArrayLike,
    log_targets: ArrayLike,
    axis: Axis = -1,
    where: ArrayLike | None = None,
) -> jax.Array:
    """What coding the targets by the predictions costs: Σ t (log t - log p).

    log_predictions: log p, shape [..., classes].
    log_targets: log t, of the same number of classes; may be -inf.
    axis: the axis or axes of the classes; `None` for all.
    where: which elements count; broadcast to the predictions.

    Returns shape [...].  Raises TypeError unless both are of floating point,
    ValueError where shapes do not fit.
    """
    log_p, log_t, counts, axes, dtype = _given(
        log_predictions, log_targets, axis, where, "log_targets"
    )
    t = jnp.exp(log_t)
    terms = t * jnp.where(t == 0, 0, log_t - log_p)
    return jnp.sum(terms, axes, where=counts).astype(dtype)


@explain_misuse
def generalized_kl_divergence(
    log_predictions: ArrayLike,
    targets: ArrayLike,
    axis: Axis = -1,
    where: ArrayLike | None = None,
) -> jax.Array:
    """The divergence of measures that need not sum to 1.

        Σ t (log t - log p) - t + p

    log_predictions: log p, shape [..., classes].
    targets: t, at least 0, of the same number of classes.
    axis: the axis or axes of the classes; `None` for all.
    where: which elements count; broadcast to the predictions.

    Returns shape [...], at least 0 but for rounding.  Raises TypeError unless both are
    of floating point, ValueError where shapes do not fit.
    """
    log_p, t, counts, axes, dtype = _given(log_predictions, targets, axis, where)
    terms = _relative(log_p, t) - t + jnp.exp(log_p)
    return jnp.sum(terms, axes, where=counts).astype(dtype)


@explain_misuse
def convex_kl_divergence(
    log_predictions: ArrayLike,
    targets: ArrayLike,
    axis: Axis = -1,
    where: ArrayLike | None = None,
) -> jax.Array:
    """Deprecated: write `generalized_kl_divergence`, which has the same arguments.

    log_predictions, targets: as there, shape [..., classes].
    axis: the axis or axes of the classes; `None` for all.
    where: which elements count; broadcast to the predictions.
    """
    deprecations.warn("convex_kl_divergence")
    return generalized_kl_divergence(log_predictions, targets, axis, where)


def _given(log_predictions, targets, axis, where, name="targets"):
    x, y, dtype = floats({"log_predictions": log_predictions, name: targets})
    x, y = fit({"log_predictions": x, name: y}, axis)
    counts = mask(where, x.shape)
    if counts is not None:  # what does not count has finite derivatives
        x, y = (jnp.where(counts, z, 0) for z in (x, y))
    return x, y, counts, normal_axes(axis, x.ndim), dtype


def _relative(log_p, t):
    log_t = safe_log(jnp.where(t == 0, 1, t))
    return t * log_t - times_log(t, log_p)
