"""The order in which a step on one leaf overwrites its arrays.

A donated array gives its memory to the one that takes its place.  On a CPU each result
is a loop of its own, and XLA chooses their order.  If it overwrites a slot that the new
parameter is still to be computed from, such as the mean of Lion, it first copies it: a
temporary of the size of the parameter, whose pages take longer to get than to fill.  It
also writes out what two loops have in common, such as the quotient of Schedule-Free.
Here the parameter comes first where it reads old slots, and otherwise last, where it
computes again what it needs.  On other devices one loop makes all results.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from ..arrays.branch import known_after
from ..arrays.coding import Coded
from ..arrays.placement import is_on_mesh
from .step_where import update_from


if TYPE_CHECKING:
    from jax.extend.core import ClosedJaxpr


# Elements of the least array for which a longer program is worth it.
LARGE = 2**14

# XLA rather writes a result of these than compute it twice.
_EXPENSIVE = {"div", "sqrt", "rsqrt", "exp", "log", "pow", "tanh", "atan2", "cbrt"}


def has_order(g: jax.Array, row: Sequence) -> bool:
    """Whether the order of results matters for a gradient and its slots."""
    # On a mesh, all devices would wait for the one element that is looked at.
    if g.size < LARGE or jax.default_backend() != "cpu" or is_on_mesh(g):
        return False
    slots = [x for one in row for x in one]
    return bool(slots) and not any(isinstance(x, Coded) for x in slots)


def in_order(step: Callable, g: jax.Array, p: jax.Array, row: Sequence) -> tuple:
    """`step(g, p, row)`, a new parameter and new slots, which overwrite the old."""
    # Imported here, because it loads half of JAX.
    from jax.extend.core import jaxpr_as_fun

    old, treedef = jax.tree.flatten(row)
    closed, shapes = jax.make_jaxpr(
        lambda g, p, *slots: step(g, p, treedef.unflatten(slots)), return_shape=True
    )(g, p, *old)
    new_p, *new = jaxpr_as_fun(closed)(g, p, *old)
    is_late, is_shared = _reads(closed)
    if any(is_late):
        held = [
            _held(x, [new_p]) if y else x for x, y in zip(old, is_late, strict=True)
        ]
        # The same equations again, of which XLA keeps those of the slots it held.
        _, *again = jaxpr_as_fun(closed)(g, p, *held)
        rows = zip(new, again, is_late, strict=True)
        new = [y if late else x for x, y, late in rows]
    elif is_shared:
        g, p, *kept = (_held(x, new) for x in (g, p, *new))
        new_p = update_from(closed, kept, g, p, *old)
    return jax.tree.structure(shapes).unflatten([new_p, *new])


def _held(x: jax.Array, done: Sequence[jax.Array]) -> jax.Array:
    """`x`, which XLA finds only after it has computed some arrays."""
    return jnp.where(known_after(True, done), x, jnp.zeros_like(x))


def _reads(closed: "ClosedJaxpr") -> tuple[list[bool], bool]:
    """Which old slots the new parameter is computed from, and what it has in common.

    Of a slot that it takes by its new value, as Adam does, it does not read the old.
    The second is whether it and a slot need the same expensive operation.
    """
    values = _Values(closed.jaxpr)
    (_, p, *old), (new_p, *new) = values.inputs, values.outputs
    by_p = values.needed([new_p], set(new))
    is_late = [x in by_p for x in old]
    # What reads the old parameter as well cannot come after the new one, nor can a slot
    # that another one reads come after that.
    for n, x in enumerate(new):
        others = {y for m, y in enumerate(old) if is_late[m] and m != n}
        if any(is_late) and values.needed([x], set(new) - {x}) & (others | {p}):
            return [False] * len(old), False
    # What they take from the new parameter is at hand.
    by_slots = values.needed(new, {new_p})
    return is_late, bool(by_p & by_slots & values.expensive)


class _Values:
    """The values of a program; equal ones have one number, since XLA computes one.

    inputs, outputs: their numbers.
    expensive: numbers of arrays that XLA does not compute twice.
    """

    def __init__(self, jaxpr: Any):
        self.numbers: dict[Any, int] = {}
        self.sources: dict[int, list[int]] = {}
        self.expensive: set[int] = set()
        self.inputs = [self._number(x) for x in jaxpr.invars]
        size = jaxpr.outvars[0].aval.size
        for eqn in jaxpr.eqns:
            sources = [self._number(x) for x in eqn.invars]
            for i, var in enumerate(eqn.outvars):
                name = (eqn.primitive, *sources, str(eqn.params), i)
                self.numbers[var] = number = self._number(name)
                self.sources[number] = sources
                if eqn.primitive.name in _EXPENSIVE and var.aval.size == size:
                    self.expensive.add(number)
        self.outputs = [self._number(x) for x in jaxpr.outvars]

    def _number(self, x: Any) -> int:
        key = (str(x.val), x.aval) if hasattr(x, "val") else x  # a literal
        return self.numbers.setdefault(key, len(self.numbers))

    def needed(self, wanted: Iterable[int], known: set[int]) -> set[int]:
        """What some values are computed from, without the sources of known ones."""
        seen: set[int] = set()
        pending = list(wanted)
        while pending:
            number = pending.pop()
            if number not in seen and number not in known:
                seen.add(number)
                pending += self.sources.get(number, ())
        return seen
