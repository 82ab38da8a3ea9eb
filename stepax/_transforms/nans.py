"""Replacing NaN gradients."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from .._engine.arrays.numerics import any_nan
from .._engine.base.optax_types import optax_compatible
from .._engine.factories.registry import public
from .._engine.step.rule import Rule, Slot


@optax_compatible
class ZeroNansState(NamedTuple):
    """found_nan: whether the last gradient contained NaN, one boolean per parameter."""

    found_nan: Any


@public()
def zero_nans() -> Rule:
    """Replace NaN by 0, and record which arrays contained NaN.

        u = 0 where g is NaN, otherwise g

    Infinities are kept.
    """

    def leaf(g, p, ctx, found_nan):
        return jnp.where(jnp.isnan(g), 0, g), any_nan(g)

    flag = Slot(make=lambda p: jnp.zeros([], bool), alike=False)
    return Rule(leaf, ZeroNansState, {"found_nan": flag}, sanitizes=True)
