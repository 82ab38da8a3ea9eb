"""Reducing the learning rate when the loss has stopped improving.

The rule is that of `ReduceLROnPlateau` in Keras and PyTorch.

Differences from PyTorch, as in Optax: `rtol` and `atol` add up, and the scale is
reduced at the `patience`-th value without improvement, where PyTorch waits for one
more.

Differences from Optax: a negative value improves only if it falls by `rtol` of its
magnitude, where Optax accepts any value that is not much larger; a patience of 0 acts
as 1; with an `rtol` of 1 the first value is an improvement; the state is real and
stored in float32 or wider.
"""

import jax
import jax.numpy as jnp
from jax.core import Tracer

from .._engine import rules as rx
from .._engine.arrays.numerics import safe_increment, zero_count


@rx.optax_compatible
class ReduceLROnPlateauState(rx.optax.contrib.ReduceLROnPlateauState):
    """State of `reduce_on_plateau`; all fields are scalars.

    scale: factor of the updates.
    best_value: best mean so far, infinite before the first.
    plateau_count: consecutive means without improvement.
    cooldown_count: remaining means to ignore.
    count: number of values in the current mean.
    avg_value: current mean.
    """

    scale: jax.Array
    best_value: jax.Array
    plateau_count: jax.Array
    cooldown_count: jax.Array
    count: jax.Array
    avg_value: jax.Array


_SHARED = {
    "scale": rx.real_scalar(1.0),
    "best_value": rx.real_scalar(jnp.inf),
    "plateau_count": zero_count,
    "cooldown_count": zero_count,
    "count": zero_count,
    "avg_value": rx.real_scalar(),
}
_RANGES = {
    "factor": rx.Range(0, 1, excludes_least=True, excludes_most=True),
    "patience": rx.AT_LEAST_0,
    "rtol": rx.UP_TO_1,
    "atol": rx.AT_LEAST_0,
    "cooldown": rx.AT_LEAST_0,
    "accumulation_size": rx.AT_LEAST_1,
    "min_scale": rx.UP_TO_1,
}


@rx.public(ranges=_RANGES)
def reduce_on_plateau(
    factor: rx.ArrayLike = 0.1,
    patience: rx.Whole = 10,
    rtol: rx.ArrayLike = 1e-4,
    atol: rx.ArrayLike = 0.0,
    cooldown: rx.Whole = 0,
    accumulation_size: rx.Whole = 1,
    min_scale: rx.ArrayLike = 0.0,
) -> rx.Rule:
    """Multiply by a scale that is reduced when the loss stops improving: u = scale g.

        v improves where v < best - rtol |best| - atol;   then best = v
        scale = max(factor scale, min_scale)   after `patience` v in a row that do not

    `update` takes the keyword `value`, a scalar such as the loss; v is its mean over
    `accumulation_size` calls.  NaN and -inf are not improvements.

    factor: factor of a reduction, in (0, 1).
    patience: consecutive means without improvement before a reduction, at least 0; 0
        acts as 1.
    rtol, atol: relative margin, in [0, 1], and absolute margin, at least 0; not both 0.
    cooldown: number of means to ignore after a reduction, at least 0.
    accumulation_size: number of calls per mean, at least 1.
    min_scale: lower bound of the scale, in [0, 1].

    Raises a `ValueError` for arguments out of range and for a `value` that is not a
    scalar, and a `TypeError` if `value` is missing.
    """
    is_blind = (rtol == 0) & (atol == 0)
    if not isinstance(is_blind, Tracer) and is_blind:
        raise ValueError(
            "`reduce_on_plateau`: `rtol` and `atol` are both 0, expected one above 0"
        )

    def prepare(scalars, stat, extra):
        old = ReduceLROnPlateauState(*scalars)
        value = _scalar(extra["value"]).astype(old.avg_value.dtype)
        n = safe_increment(old.count)
        mean = (old.count * old.avg_value + value) / n
        waiting = old._replace(count=n, avg_value=mean)
        is_due = n >= accumulation_size
        new = jax.tree.map(
            lambda x, y: jnp.where(is_due, x, y), judged(old, mean), waiting
        )
        return new.scale, tuple(new)

    def judged(old, mean):
        best = old.best_value
        level = jnp.where(best < 0, 1 + rtol, 1 - rtol) * best - atol
        # A best of -inf would be the last one.
        is_finite = jnp.isfinite(mean)
        improves = is_finite & (mean < jnp.where(best == jnp.inf, best, level))
        is_fine = improves | (old.cooldown_count > 0)
        number = jnp.where(is_fine, 0, safe_increment(old.plateau_count))
        is_stuck = ~is_fine & (number >= patience)
        less = jnp.maximum(old.scale * factor, min_scale)
        rest = jnp.maximum(old.cooldown_count - 1, 0)
        return ReduceLROnPlateauState(
            scale=jnp.where(is_stuck, less, old.scale),
            best_value=jnp.where(improves, mean, best),
            plateau_count=jnp.where(is_stuck, 0, number),
            cooldown_count=jnp.where(is_stuck, cooldown, rest),
            count=jnp.zeros_like(old.count),
            avg_value=jnp.zeros_like(old.avg_value),
        )

    def leaf(g, p, scale):
        return (scale * g,)

    State, reads = ReduceLROnPlateauState, ("value",)
    return rx.Rule(
        leaf, State, scalars=_SHARED, prepare=prepare, reads=reads, elementwise=True
    )


def _scalar(value):
    value = jnp.asarray(value)
    if value.shape != ():
        raise ValueError(
            f"`value` has shape {value.shape}, but `reduce_on_plateau` expects a "
            "scalar: pass the mean of the losses"
        )
    return value
