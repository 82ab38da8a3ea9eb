"""Arrays cut into blocks; blocks of the same shape are stacked."""

import itertools as it
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp


class Blocks(NamedTuple):
    """Neighbouring blocks of an array that have the same shape.

    starts: the start of the first block, on each axis.
    counts: the number of blocks along each axis.
    shape: the shape of each block.
    """

    starts: tuple[int, ...]
    counts: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def where(self) -> tuple[slice, ...]:
        """The part of the array that the blocks cover."""
        sizes = map(lambda count, n: count * n, self.counts, self.shape)
        return tuple(slice(i, i + n) for i, n in zip(self.starts, sizes, strict=True))

    def cut(self, x: jax.Array) -> jax.Array:
        """The blocks of an array as a stack, (blocks, *shape)."""
        pairs = zip(self.counts, self.shape, strict=True)
        x = x[self.where].reshape(list(it.chain(*pairs)))
        counts, sides = range(0, x.ndim, 2), range(1, x.ndim, 2)
        return x.transpose(*counts, *sides).reshape(-1, *self.shape)

    def joined(self, stack: jax.Array) -> jax.Array:
        """The inverse of `cut`: the part of the array."""
        n = len(self.shape)
        x = stack.reshape(*self.counts, *self.shape)
        x = x.transpose(*it.chain(*((i, n + i) for i in range(n))))
        pairs = zip(self.counts, self.shape, strict=True)
        return x.reshape([count * side for count, side in pairs])


def blocks(shape: tuple[int, ...], size: int) -> list[Blocks]:
    """The blocks of an array, with no axis longer than `size`.

    The last block along an axis may be shorter than the others: then there are two
    kinds of them, and up to 2^axes in all.
    """

    def along(n):
        whole = n // size if n > size else 1
        length = min(n, size)
        rest = n - whole * length
        return [(0, whole, length), *([(whole * length, 1, rest)] if rest else [])]

    found = it.product(*map(along, shape))
    return [Blocks(*map(tuple, zip(*parts, strict=True))) for parts in found]


def map_blocks(
    f: Callable, size: int, arrays: Sequence[jax.Array], stored: Sequence[Sequence]
) -> tuple:
    """`f` of each block of some arrays, and of the arrays stored for its axes.

    f: maps a block of each array, and a tuple with an array for each axis for each of
        `stored`, to a new block and such tuples.
    stored: columns of stacks, (blocks, ...), for each axis of each kind of block.
    """
    shape = arrays[0].shape
    u, new, n = jnp.zeros_like(arrays[0]), [[] for _ in stored], len(shape)
    for i, group in enumerate(blocks(shape, size)):
        kept = [tuple(column[i * n : (i + 1) * n]) for column in stored]
        made, *columns = jax.vmap(f)(*map(group.cut, arrays), *kept)
        u = u.at[group.where].set(group.joined(made))
        for column, xs in zip(new, columns, strict=True):
            column.extend(xs)
    return u, *map(tuple, new)
