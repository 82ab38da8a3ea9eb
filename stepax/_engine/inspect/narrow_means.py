"""Means that stand still, because their dtype is too narrow for what a step adds.

Of a mean with decay b a step changes (1 - b) of its distance to the new value.  In
bfloat16, of 8 bits, a change below 2^-9 of the mean is rounded away: with b = 0.999
Adam's `nu` stays at what it first rounded to, and steps are 65 % off after 1,000.
"""

from typing import Any

import jax
import jax.numpy as jnp

from ..step.plan import part_of
from ..step.rule import Rule
from ..trees.paths import join
from .components import Component


def warnings(organ: Component) -> tuple[str, ...]:
    """A sentence for each slot of a transformation that is stored so."""
    return tuple(
        text for part in organ.walk() for text in _of_rule(part_of(part.tx), part)
    )


def _of_rule(rule: Any, part: Component) -> list[str]:
    found = []
    for name in _names(rule) if part.is_leaf else ():
        dtypes = {str(x.dtype) for x in _narrow(getattr(part.state, name, None))}
        where = join((*part.path, name))
        found += [_warning(name, where, dtype) for dtype in sorted(dtypes)]
    return found


def _names(rule: Any) -> list[str]:
    """What holds squares or has a long memory; of a closure, by the usual name."""
    if not isinstance(rule, Rule):
        return ["nu"]
    return [k for k, slot in rule.slots.items() if slot.is_wide or slot.is_slow]


def _narrow(stored: Any) -> list:
    arrays = [x for x in jax.tree.leaves(stored) if hasattr(x, "dtype")]
    floats = [x for x in arrays if jnp.issubdtype(x.dtype, jnp.floating)]
    return [x for x in floats if jnp.finfo(x.dtype).bits < 32]


def _warning(name: str, where: str, dtype: str) -> str:
    return (
        f"`{where}` is stored in {dtype}, in which it stands still once a step changes "
        "it by less than is rounded away: keep it in float32 with "
        f'`with_state_dtypes(tx, {{"{name}": "float32"}})`, or all with '
        "`master_weights(tx)`"
    )
