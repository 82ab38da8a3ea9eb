"""Grokfast: amplify the slow part of the gradients.

Lee, Kang, Kim and Lee, 2024, Grokfast: Accelerated Grokking by Amplifying Slow
Gradients (arXiv:2405.20233), Algorithms 1 and 2, with the authors' warm-up.
"""

from typing import Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from .._engine import rules as rx
from .._engine.arrays.moments import ema
from .._engine.arrays.numerics import safe_increment


PAPER = "arXiv:2405.20233"


class GrokfastEmaState(NamedTuple):
    """count: steps taken.  ema: EMA of the gradients, shaped like the parameters."""

    count: jax.Array
    ema: rx.ArrayTree


@rx.public(paper=PAPER, ranges={"weight": rx.AT_LEAST_0})
def grokfast_ema(decay: rx.ArrayLike = 0.98, weight: rx.ArrayLike = 2.0) -> rx.Rule:
    """Add a multiple of the EMA of the gradients, before an optimizer.

        s = decay s + (1 - decay) g,   s = g at the first step
        u = g + weight s

    decay: decay rate of the EMA, in [0, 1].
    weight: factor of the EMA, at least 0.
    """

    def leaf(g, p, is_first, mean):
        mean = jnp.where(is_first, g, ema(mean, g, decay))
        return g + weight * mean, mean

    prepare, slots = rx.from_count(lambda count: count == 0), {"ema": rx.Slot()}
    return rx.Rule(leaf, GrokfastEmaState, slots, rx.COUNT, prepare, elementwise=True)


class GrokfastMaState(NamedTuple):
    """count: steps taken, a scalar.

    window: the last gradients, (window, *shape) for a parameter of that shape.
    """

    count: jax.Array
    window: rx.ArrayTree


@rx.public(paper=PAPER, ranges={"weight": rx.AT_LEAST_0, "window": rx.AT_LEAST_1})
def grokfast_ma(
    window: int = 100,
    weight: rx.ArrayLike = 5.0,
    *,
    reduction: Literal["mean", "sum"] = "mean",
    warmup: bool = True,
) -> rx.Rule:
    """Add a multiple of the mean of the last gradients, before an optimizer.

        u = g + weight mean,   of the last `window` gradients with g

    It stores all of these gradients; `grokfast_ema` stores one array instead.

    window: number of gradients, at least 1.
    weight: factor of the mean, at least 0.
    reduction: "mean", or "sum" to add a multiple of their sum instead.
    warmup: whether the first `window` - 1 gradients pass unchanged; otherwise the mean
        is over the gradients so far.

    Raises a `ValueError` for an unknown reduction.
    """
    rx.require_one_of("reduction", reduction, ("mean", "sum"))

    def prepare(scalars, stat, extra):
        (count,) = scalars
        t = safe_increment(count)
        number = jnp.minimum(t, window).astype(float) if reduction == "mean" else 1.0
        is_on = (t >= window) | (not warmup)
        return (count % window, is_on, weight / number), (t,)

    def leaf(g, p, ctx, past):
        place, is_on, factor = ctx
        if past.shape[1:] != g.shape:  # the engine raises, with the path
            return g, jnp.broadcast_to(g, (window, *g.shape))
        past = jax.lax.dynamic_update_index_in_dim(past, g, place, 0)
        # Not a product with 0, which would not be 0 for a NaN in the window.
        return g + jnp.where(is_on, factor * jnp.sum(past, 0), 0), past

    def make(p):
        # Sharded like the parameter, which `jnp.zeros` of this shape would not be.
        return jnp.broadcast_to(
            cast(jax.Array, rx.zeros_like(p)), (window, *np.shape(p))
        )

    slots = {"window": rx.Slot(make, alike=False)}
    return rx.Rule(leaf, GrokfastMaState, slots, rx.COUNT, prepare)
