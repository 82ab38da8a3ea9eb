"""The softmax ranking loss: cross-entropy over the items of a list.

Cao et al., 2007, Learning to Rank: From Pairwise Approach to Listwise Approach
(DOI:10.1145/1273496.1273513), with the relevance used as it is.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._engine.functions.calls import explain_misuse
from .inputs import broadcast, fit, floats, mask
from .softmax import left_out, log_softmax, times_log


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
    x, y, _ = floats({"logits": logits}, {"labels": labels})
    x, y = fit({"logits": x, "labels": y}, -1)
    if weights is not None:
        w, _ = floats({}, {"weights": weights})
        y = broadcast("weights", w.astype(y.dtype), x.shape) * y
    counts = mask(where, x.shape)
    x, y = left_out(x, y, counts)
    loss = -jnp.sum(times_log(y, log_softmax(x, (x.ndim - 1,))), axis=-1)
    if reduce_fn is not None:
        loss = jnp.asarray(reduce_fn(loss, where=_lists(counts)))
    return loss.astype(jnp.result_type(logits))


def _lists(counts):
    """Which lists to include; if none, all of them, whose losses are 0."""
    if counts is None:
        return None
    lists = jnp.any(counts, axis=-1)
    return lists | ~jnp.any(lists)
