"""Sparsemax losses, with probabilities that can be exactly 0, and Fenchel-Young losses.

Martins and Astudillo, 2016, From Softmax to Sparsemax: A Sparse Model of Attention and
Multi-Label Classification (arXiv:1602.02068), equation 16 and algorithm 1; for two
classes Blondel et al., 2020, Learning with Fenchel-Young Losses (JMLR 21), section 4.4.

Blondel et al., 2020, Learning with Fenchel-Young Losses (arXiv:1901.02324),
definition 2, without the term that only depends on the targets.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._engine.arrays.numerics import nan_max
from .._engine.functions.calls import explain_misuse
from .inputs import at_label, fit, floating, floats, score_at_label, whole_labels
from .softmax import times_log


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
    x, dtype = floats({}, {"logits": logits})
    y = jnp.asarray(labels)
    if jnp.issubdtype(y.dtype, jnp.integer):
        whole_labels(labels, 2)
    x, y = fit({"logits": x, "labels": y})
    loss = jax.nn.sparse_plus(jnp.where(y != 0, -x, x))
    return loss.astype(floating(dtype))


@explain_misuse
def multiclass_sparsemax_loss(scores: ArrayLike, labels: ArrayLike) -> jax.Array:
    """The sparsemax loss of many classes.

        p = the distribution nearest to s
        p·s - ‖p‖²/2 + 1/2 - s_label

    scores: the scores s, shape [..., classes].
    labels: shape [...], integers in [0, classes).

    Returns float32 or wider, shape [...].  Raises TypeError for other dtypes,
    ValueError if shapes do not fit or a known label is out of range.
    """
    s, _ = floats({}, {"scores": scores})
    s, y = score_at_label(s, labels)
    # The loss is invariant to a shift of all scores; shifted scores do not overflow.
    s = s - jax.lax.stop_gradient(nan_max(s, -1, keepdims=True))
    p = _sparsemax(s)
    best = jnp.sum(p * jnp.where(p > 0, s, 0) - jnp.square(p) / 2, axis=-1)
    return best + 0.5 - at_label(s, y)


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
        s, t, dtype = floats({}, {"scores": scores, "targets": targets})
        s, t = fit({"scores": s, "targets": t}, -1)
        largest = jnp.vectorize(
            lambda s: max_fun(s, *args, **kwargs), signature="(n)->()"
        )(s)
        loss = largest - jnp.sum(times_log(t, s), axis=-1)
        return loss.astype(floating(dtype))

    return fenchel_young_loss
