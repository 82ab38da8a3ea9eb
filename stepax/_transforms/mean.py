"""Moving averages and sums of the updates."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from .._engine.arrays.moments import bias_correction, ema as mix
from .._engine.base.optax_types import optax_compatible
from .._engine.factories.ranges import MOMENTUM
from .._engine.factories.registry import public
from .._engine.step.rule import COUNT, Rule, Slot, from_step


@optax_compatible
class EmaState(NamedTuple):
    """count: steps taken.  ema: EMA of the updates, shaped like the parameters."""

    count: jax.Array
    ema: Any


@public(ranges={"decay": MOMENTUM})
def ema(
    decay: ArrayLike, debias: bool = True, accumulator_dtype: DTypeLike | None = None
) -> Rule:
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

    prepare = from_step(lambda t: bias_correction(decay, t) if debias else None)
    slots = {"ema": Slot(dtype=accumulator_dtype)}
    return Rule(leaf, EmaState, slots, COUNT, prepare, elementwise=True)


@optax_compatible
class ApplyEvery(NamedTuple):
    """count: steps since the last update.  grad_acc: sum since then, shaped like the
    parameters."""

    count: jax.Array
    grad_acc: Any


@public()
def apply_every(k: ArrayLike = 1) -> Rule:
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

    return Rule(
        leaf,
        ApplyEvery,
        {"grad_acc": Slot(kind="sum")},
        COUNT,
        prepare,
        elementwise=True,
    )
