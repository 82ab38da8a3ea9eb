"""The slots of a matrix joined into one array, which one collective can move."""

import math

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from ..arrays.joined import Joined
from ..arrays.placement import axis_to_spread
from ..base.protocol import ArrayTree


class JoinedSlots:
    """How slots are joined into one array for each of their dtypes.

    slots: the slots of one matrix, arrays or trees of them.
    n: the number of devices over which they are sharded.

    A slot that is sharded over n devices becomes n rows, one for each device, so
    joining such slots moves no data.  Slots that are replicated, because no axis is
    divisible by n, form a separate array.
    """

    def __init__(self, slots: ArrayTree, n: int):
        leaves, self.treedef = jax.tree.flatten(slots)
        self.n = n
        self.shapes = [x.shape for x in leaves]
        self.axes = [axis_to_spread(x.shape, n) for x in leaves]
        kinds = [(x.dtype, at is None) for x, at in zip(leaves, self.axes, strict=True)]
        lengths = [
            math.prod(shape) // self._rows(i) for i, shape in enumerate(self.shapes)
        ]
        self.joined = Joined(kinds, [(length,) for length in lengths])
        self.is_whole = self.joined.first([at is None for at in self.axes])

    def join(self, slots: ArrayTree) -> list[jax.Array]:
        """The joined arrays, with rows for the devices."""
        xs = self.treedef.flatten_up_to(slots)
        return self.joined.join([self._flat(i, x) for i, x in enumerate(xs)], axes=1)

    def split(self, parts: list[jax.Array]) -> ArrayTree:
        """The inverse of `join`."""
        xs = self.joined.split(parts)
        return self.treedef.unflatten(self._shaped(i, x) for i, x in enumerate(xs))

    def specs(self, names: tuple[str, ...]) -> list[PartitionSpec]:
        """How the joined arrays are sharded over the mesh axes `names`."""
        return [PartitionSpec(None if x else names) for x in self.is_whole]

    def _rows(self, i):
        return 1 if self.axes[i] is None else self.n

    # In steps that split one axis or merge neighbours, the only reshapes that explicit
    # mesh axes allow.
    def _flat(self, i, x):
        n, at = self._rows(i), self.axes[i]
        if at is None:
            return x.reshape(1, -1)
        x = jnp.moveaxis(x, at, 0)
        rows = x.reshape(len(x), math.prod(x.shape[1:]))
        return rows.reshape(n, len(x) // n, -1).reshape(n, -1)

    def _shaped(self, i, x):
        shape, at = self.shapes[i], self.axes[i]
        if at is None:
            return x.reshape(shape)
        others = shape[:at] + shape[at + 1 :]
        x = x.reshape(self.n, shape[at] // self.n, math.prod(others))
        rows = x.reshape(shape[at], math.prod(others))
        return jnp.moveaxis(rows.reshape(shape[at], *others), 0, at)
