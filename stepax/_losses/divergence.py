"""Kullback-Leibler divergences.

Kullback and Leibler, 1951, On Information and Sufficiency
(DOI:10.1214/aoms/1177729694); Bregman, 1967, The relaxation method of finding the
common point of convex sets (DOI:10.1016/0041-5553(67)90040-7), for unnormalized
measures.

Difference from Optax: 0 log 0 = 0 everywhere, with finite derivatives in forward and
reverse mode: targets of 0 and log targets of -inf contribute nothing, whatever the
prediction.
"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._engine.arrays.numerics import safe_log
from .._engine.functions.calls import explain_misuse
from .._engine.functions.deprecated import warn_deprecated
from .inputs import Axis, fit, floats, mask, normal_axes
from .softmax import times_log


@explain_misuse
def kl_divergence(
    log_predictions: ArrayLike,
    targets: ArrayLike,
    axis: Axis = -1,
    where: ArrayLike | None = None,
) -> jax.Array:
    """The Kullback-Leibler divergence: Σ t (log t - log p).

    log_predictions: log-probabilities log p, shape [..., classes].
    targets: t, at least 0, with the same number of classes.  The derivative with
        respect to a target of 0, which is -inf, is replaced by -log p.
    axis: class axis or axes; `None` for all.
    where: which elements to include; broadcast to the predictions.

    Returns shape [...].  Raises TypeError unless both are floating point,
    ValueError if shapes do not fit.
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
    """The Kullback-Leibler divergence: Σ t (log t - log p).

    log_targets: log t, with the same number of classes; may be -inf.
    Other arguments: those of `kl_divergence`.

    Returns shape [...].  Raises TypeError unless both are floating point,
    ValueError if shapes do not fit.
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
    """The Kullback-Leibler divergence of measures that need not sum to 1.

        Σ t (log t - log p) - t + p

    targets: t, at least 0, with the same number of classes.
    Other arguments: those of `kl_divergence`.

    Returns shape [...], at least 0 up to rounding.  Raises TypeError unless both are
    floating point, ValueError if shapes do not fit.
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
    """Deprecated: use `generalized_kl_divergence`, which has the same arguments.

    log_predictions, targets: log p and t, shape [..., classes].
    axis: class axis or axes; `None` for all.
    where: which elements to include; broadcast to the predictions.
    """
    warn_deprecated("convex_kl_divergence")
    return generalized_kl_divergence(log_predictions, targets, axis, where)


def _given(log_predictions, targets, axis, where, name="targets"):
    x, y, dtype = floats({"log_predictions": log_predictions, name: targets})
    x, y = fit({"log_predictions": x, name: y}, axis)
    counts = mask(where, x.shape)
    if counts is not None:  # masked elements get finite derivatives
        x, y = (jnp.where(counts, z, 0) for z in (x, y))
    return x, y, counts, normal_axes(axis, x.ndim), dtype


def _relative(log_p, t):
    log_t = safe_log(jnp.where(t == 0, 1, t))
    return t * log_t - times_log(t, log_p)
