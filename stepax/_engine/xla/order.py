"""The order in which a step overwrites the arrays of a leaf, and visits large leaves.

The memory of a donated array is reused for the one that replaces it.  On a CPU each
result is a separate loop, and XLA chooses their order.  If it overwrites a slot that
the new parameter still depends on, such as the mean of Lion, it first copies the slot:
a temporary of the size of the parameter, whose pages take longer to allocate than to
fill.  It also writes subexpressions that two loops share to memory, such as the
quotient of Schedule-Free.  Here the parameter comes first if it reads old slots, and
otherwise last, where it recomputes what it needs.  On other devices one loop computes
all results.

Some rules need all of an update before they can finish it, such as LAMB, which divides
by its norm.  XLA would run the first half of the step on all leaves before the second
half on any, and so need a temporary for each.  Here leaves wait for earlier ones.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from ..arrays.coding import Coded, holds_codes
from ..arrays.placement import is_on_mesh
from . import by_platform, only_after, true_after


# Number of elements from which a longer program pays off.
LARGE = 2**14

# Elements of the least array that waits for others: XLA compiles more for it.
WAITS = 2**16

# Total elements of leaves that do not wait for each other: a gradient, its parameter
# and two slots then fit into the last cache that two cores share.  More cores share
# each leaf.
AT_ONCE = 2**20


class LeafOrder:
    """The leaves of `WAITS` elements or more, some of which wait for earlier ones."""

    def __init__(self, makes_params: bool, is_elementwise: bool):
        # To wait for an update that is not stored would store it.
        self.makes_params = makes_params
        self.is_elementwise = is_elementwise
        self.elements = 0
        self.last: jax.Array | None = None
        self.awaited: jax.Array | None = None

    def run(self, kernel: Callable, g: jax.Array, p: Any, row: Sequence) -> tuple:
        """`kernel(g, p, row)`, the new p and slots, after earlier leaves if needed."""
        has_temporaries = not self.is_elementwise or holds_codes(row)
        if not (self.makes_params and has_temporaries and _is_ordered(g)):
            return kernel(g, p, row)
        if self.last is not None and self.elements + g.size > AT_ONCE:
            self.awaited, self.elements = self.last, 0
        self.elements += g.size
        if self.awaited is not None:
            row = _late(row, g, self.awaited)
        self.last, new = kernel(g, p, row)
        return self.last, new


def has_order(g: jax.Array, row: Sequence) -> bool:
    """Whether the order of results matters for a gradient and its slots."""
    return _is_ordered(g) and any(row) and not holds_codes(row)


def _late(row: Sequence, g: jax.Array, done: jax.Array) -> list:
    """The slots of a gradient, which XLA needs first, made available after an array."""
    # Not the gradient itself: XLA would copy the operand of a reduction, as for its
    # norm.  And only one array: XLA compiles each loop that starts with a select twice.
    row, is_coded = [list(slots) for slots in row], holds_codes(row)
    for slots in row:
        for i, x in enumerate(slots):
            if isinstance(x, Coded):
                slots[i] = x._replace(scales=_after(x.scales, done))
            elif not is_coded and isinstance(x, jax.Array) and x.shape == g.shape:
                slots[i] = _after(x, done)
                return row
    return row


def _is_ordered(g: jax.Array) -> bool:
    """Whether the order of computation of a leaf's results is imposed on a CPU."""
    # On a mesh, all devices would wait for the one element that is read.
    return g.size >= LARGE and not is_on_mesh(g)


def in_order(step: Callable, g: jax.Array, p: jax.Array, row: Sequence) -> tuple:
    """`step(g, p, row)`, a new parameter and new slots, which overwrite the old."""
    # Imported here, because it loads half of JAX.
    from .jaxprs import traced, update_from

    old, treedef = jax.tree.flatten(row)
    closed, run, rebuild = traced(
        lambda g, p, *slots: step(g, p, treedef.unflatten(slots)), g, p, *old
    )
    new_p, *new = run(g, p, *old)
    is_late, is_shared = _reads(closed)
    if any(is_late):
        held = [
            _held(x, [new_p]) if y else x for x, y in zip(old, is_late, strict=True)
        ]
        # The same equations again, of which XLA keeps those of the slots it held.
        _, *again = run(g, p, *held)
        rows = zip(new, again, is_late, strict=True)
        new = [y if late else x for x, y, late in rows]
    elif is_shared:
        g, p, *kept = (_held(x, new) for x in (g, p, *new))
        new_p = update_from(closed, kept, g, p, *old)
    return rebuild([new_p, *new])


# Jitted: in the trace of a step each is one equation per leaf.
@jax.jit
def _after(x, done):
    return by_platform(lambda x, done: x, x, done, cpu=lambda x, done: _held(x, [done]))


def _held(x: jax.Array, done: Sequence[jax.Array]) -> jax.Array:
    """`x`, which is available to XLA only after it has computed some arrays."""
    return only_after(true_after(True, done), x)


def _reads(closed: Any) -> tuple[list[bool], bool]:
    """Which old slots the new parameter is computed from, and what it has in common.

    If it uses the new value of a slot, as in Adam, it does not read the old one.
    The second is whether it and a slot need the same expensive operation.
    """
    from .jaxprs import Values

    values = Values(closed.jaxpr)
    (_, p, *old), (new_p, *new) = values.inputs, values.outputs
    by_p = values.needed([new_p], set(new))
    is_late = [x in by_p for x in old]
    # A slot that also reads the old parameter cannot come after the new one, nor can a
    # slot that another slot reads come after that.
    for n, x in enumerate(new):
        others = {y for m, y in enumerate(old) if is_late[m] and m != n}
        if any(is_late) and values.needed([x], set(new) - {x}) & (others | {p}):
            return [False] * len(old), False
    # Values that are derived from the new parameter are available.
    by_slots = values.needed(new, {new_p})
    return is_late, bool(by_p & by_slots & values.expensive)
