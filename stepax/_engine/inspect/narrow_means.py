"""Running means that stagnate, because their dtype is too narrow.

A step moves a mean with decay b by (1 - b) of its distance to the new value.  bfloat16
has 8 bits of precision, so a change below 2^-9 of the mean is rounded away: with
b = 0.999 Adam's `nu` stays at its first value, and steps are 65 % off after 1,000.
"""

import jax
import jax.numpy as jnp

from ..step.plan import node_of
from ..step.rule import Rule
from ..trees.paths import join
from .components import Component


def warnings(component: Component) -> tuple[str, ...]:
    """A warning for each slot of a transformation that is stored too narrowly."""
    return tuple(
        text for part in component.walk() for text in _of_rule(node_of(part.tx), part)
    )


def _of_rule(rule: object, part: Component) -> list[str]:
    found = []
    # A wrapper's state contains those of its members, each of which is visited itself.
    for name in _names(rule) if part.is_leaf else ():
        dtypes = {str(x.dtype) for x in _narrow(getattr(part.state, name, None))}
        where = join((*part.path, name))
        found += [_warning(name, where, dtype) for dtype in sorted(dtypes)]
    return found


def _names(rule: object) -> list[str]:
    """The slots that hold squares or have a long memory."""
    # A closure declares no slots; `nu` is the usual name.  First moments may be narrow:
    # with b1 = 0.9 a step changes a tenth of the distance, which bfloat16 resolves.
    if not isinstance(rule, Rule):
        return ["nu"]
    return [k for k, slot in rule.slots.items() if slot.is_wide or slot.is_slow]


def _narrow(stored: object) -> list:
    # By `finfo`, and not by the item size: float16 and the 8-bit floats count as well.
    arrays = [x for x in jax.tree.leaves(stored) if hasattr(x, "dtype")]
    floats = [x for x in arrays if jnp.issubdtype(x.dtype, jnp.floating)]
    return [x for x in floats if jnp.finfo(x.dtype).bits < 32]


def _warning(name: str, where: str, dtype: str) -> str:
    return (
        f"`{where}` is stored in {dtype}, in which small changes are rounded away, so "
        "that it stops moving: keep it in float32 with "
        f'`with_state_dtypes(tx, {{"{name}": "float32"}})`, or all with '
        "`master_weights(tx)`"
    )
