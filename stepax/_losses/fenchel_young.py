"""Losses made from functions like a maximum.

Blondel et al., 2020, Learning with Fenchel-Young Losses (arXiv:1901.02324),
definition 2, less the part that depends on the targets alone.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._engine.functions.calls import explain_misuse
from .inputs import fit, floating, floats
from .softmax import times_log


@explain_misuse
def make_fenchel_young_loss(
    max_fun: Callable[..., ArrayLike],
) -> Callable[..., jax.Array]:
    """The loss whose derivative is the argmax that belongs to `max_fun`, less a target.

        max_fun(s) - s·t

    max_fun: a convex function of a vector, such as `jax.nn.logsumexp`.

    Returns a function of scores s and targets t, shape [..., size] each, that hands its
    other arguments to `max_fun` and returns shape [...]; it raises ValueError
    where shapes do not fit.
    """

    def fenchel_young_loss(
        scores: ArrayLike, targets: ArrayLike, *args: Any, **kwargs: Any
    ) -> jax.Array:
        s, t, dtype = floats({}, {"scores": scores, "targets": targets})
        s, t = fit({"scores": s, "targets": t}, -1)
        of_vector = lambda s: max_fun(s, *args, **kwargs)
        largest = jnp.vectorize(of_vector, signature="(n)->()")(s)
        loss = largest - jnp.sum(times_log(t, s), axis=-1)
        return loss.astype(floating(dtype))

    return fenchel_young_loss
