"""Moving averages and sums of the updates."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.moments import bias_correction, ema as mix


@rx.optax_compatible
class EmaState(NamedTuple):
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
    accumulator_dtype: storage dtype of the EMA; the parameter's if `None`.
    """

    def leaf(g, p, ctx, mean):
        mean = mix(mean, g, decay)
        return (mean / ctx if debias else mean), mean

    prepare = rx.from_step(lambda t: bias_correction(decay, t) if debias else None)
    slots = {"ema": rx.Slot(dtype=accumulator_dtype)}
    return rx.Rule(leaf, EmaState, slots, rx.COUNT, prepare, elementwise=True)


@rx.optax_compatible
class ApplyEvery(NamedTuple):
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
