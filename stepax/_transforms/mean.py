"""Moving averages and sums of the updates; Grokfast, which amplifies their slow part.

Lee, Kang, Kim and Lee, 2024, Grokfast: Accelerated Grokking by Amplifying Slow
Gradients (arXiv:2405.20233), Algorithms 1 and 2, with the authors' warm-up.
"""

from typing import Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from .._engine import rules as rx
from .._engine.arrays.moments import bias_correction, ema as mix
from .._engine.arrays.numerics import safe_increment


@rx.optax_compatible
class EmaState(rx.optax.EmaState):
    """count: steps taken.  ema: EMA of the updates, shaped like the parameters."""

    count: jax.Array
    ema: rx.ArrayTree


@rx.public(ranges={"decay": rx.MOMENTUM})
def ema(
    decay: rx.ArrayLike,
    debias: bool = True,
    accumulator_dtype: rx.DTypeLike | None = None,
) -> rx.Rule:
    """Replace the updates by their exponential moving average (EMA).

        ema = decay ema + (1 - decay) g
        u = ema / (1 - decay^t)   if debias, otherwise ema

    decay: decay rate, in [0, 1].
    debias: whether to correct the bias from initialization at zero.
    accumulator_dtype: dtype of the EMA; defaults to the parameter's.
    """

    def leaf(g, p, ctx, mean):
        mean = mix(mean, g, decay)
        return (mean / ctx if debias else mean), mean

    prepare = rx.from_step(lambda t: bias_correction(decay, t) if debias else None)
    slots = {"ema": rx.Slot(dtype=accumulator_dtype)}
    return rx.Rule(leaf, EmaState, slots, rx.COUNT, prepare, elementwise=True)


@rx.optax_compatible
class ApplyEvery(rx.optax.ApplyEvery):
    """count: steps since the last update.  grad_acc: sum since then, shaped like the
    parameters."""

    count: jax.Array
    grad_acc: rx.Updates


@rx.public()
def apply_every(k: rx.ArrayLike = 1) -> rx.Rule:
    """Accumulate k updates and return their sum; return zeros at the other steps.

    Transformations before and after it in a chain still run at every step;
    `MultiSteps` runs a whole optimizer every k steps.

    k: number of updates to accumulate, an integer, at least 1.

    Raises a `ValueError` for k below 1.
    """

    def prepare(scalars, stat, extra):
        (count,) = scalars
        period = jnp.asarray(k).astype(count.dtype)
        return (count == 0, count == period - 1), ((count + 1) % period,)

    def leaf(g, p, ctx, grad_acc):
        is_first, is_last = ctx
        grad_acc = jnp.where(is_first, 0, grad_acc) + g
        return jnp.where(is_last, grad_acc, 0), grad_acc

    return rx.Rule(
        leaf,
        ApplyEvery,
        {"grad_acc": rx.Slot(kind="sum")},
        rx.COUNT,
        prepare,
        elementwise=True,
    )


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
        mean = jnp.where(is_first, g, mix(mean, g, decay))
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
