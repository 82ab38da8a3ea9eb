"""The slots of a matrix in one array, so that one collective moves them all."""

import math

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from ..arrays.placement import axis_to_spread
from ..base.protocol import ArrayTree


class JoinedSlots:
    """How slots are joined into one array for each of their dtypes.

    slots: those of one matrix, arrays or trees of them.
    n: the number of devices that share them.

    A slot that is divided among n devices becomes n rows, of which each device has one:
    so to join such slots moves nothing.  Those that are replicated, because no axis is
    divisible by n, make an array of their own.
    """

    def __init__(self, slots: ArrayTree, n: int):
        leaves, self.treedef = jax.tree.flatten(slots)
        self.n = n
        self.shapes = [x.shape for x in leaves]
        self.axes = [axis_to_spread(x.shape, n) for x in leaves]
        groups: dict[tuple, list[int]] = {}
        for i, (x, at) in enumerate(zip(leaves, self.axes, strict=True)):
            groups.setdefault((x.dtype, at is None), []).append(i)
        self.groups = list(groups.values())

    def join(self, slots: ArrayTree) -> list[jax.Array]:
        """The joined arrays."""
        xs = self.treedef.flatten_up_to(slots)
        return [
            jnp.concatenate([self._flat(i, xs[i]) for i in group], -1)
            for group in self.groups
        ]

    def split(self, parts: list[jax.Array]) -> ArrayTree:
        """The inverse of `join`."""
        xs: list = [None] * len(self.shapes)
        for group, part in zip(self.groups, parts, strict=True):
            start = 0
            for i in group:
                end = start + self._length(i)
                xs[i] = self._shaped(i, part[..., start:end])
                start = end
        return self.treedef.unflatten(xs)

    def specs(self, names: tuple[str, ...]) -> list[PartitionSpec]:
        """How the joined arrays are sharded over the mesh axes `names`."""
        is_whole = (self.axes[group[0]] is None for group in self.groups)
        return [PartitionSpec() if x else PartitionSpec(names) for x in is_whole]

    def _length(self, i):
        size = math.prod(self.shapes[i])
        return size if self.axes[i] is None else size // self.n

    # Two steps each: one splits an axis, the other merges two, which is all that
    # arrays on explicit mesh axes can do.
    def _flat(self, i, x):
        if self.axes[i] is None:
            return jnp.ravel(x)
        x = jnp.moveaxis(x, self.axes[i], 0)
        return x.reshape(self.n, x.shape[0] // self.n, -1).reshape(self.n, -1)

    def _shaped(self, i, x):
        shape, at = self.shapes[i], self.axes[i]
        if at is None:
            return x.reshape(shape)
        others = shape[:at] + shape[at + 1 :]
        x = x.reshape(self.n, shape[at] // self.n, *others)
        return jnp.moveaxis(x.reshape(shape[at], *others), 0, at)
