"""What changed in an array: blocks, with the places and the new values in each."""

import math
from typing import Any, NamedTuple

import numpy as np


class Block(NamedTuple):
    """What changed in a block of an array, which is a shard or the whole.

    start: index of the first element of the block in the array.
    shape: shape of the block.
    indices: int32 or int64, (n,): which of its elements changed, counted row by row;
        `None` if all elements are given.
    values: their new values, (n,), in the dtype of the array.
    old, new: digests of the block before and after; not compared if `None`.
    """

    start: tuple[int, ...]
    shape: tuple[int, ...]
    indices: np.ndarray | None
    values: np.ndarray
    old: int | None = None
    new: int | None = None


class Changed(NamedTuple):
    """An array that changed.

    shape, dtype: those of the array.
    blocks: the blocks with changes that this process holds.
    """

    shape: tuple[int, ...]
    dtype: Any
    blocks: tuple[Block, ...]


def require_sound(name: str, changed: Changed) -> None:
    """Raise unless blocks are within the array, and indices and values within them."""
    if not all(_is_sound(block, changed) for block in changed.blocks):
        raise ValueError(
            f"`changes` are damaged: a block of `{name}` is not within its array of "
            f"shape {changed.shape}, or its indices and values are not within the block"
        )


def _is_sound(block: Block, changed: Changed) -> bool:
    rows = [*zip(block.start, block.shape, changed.shape, strict=False)]
    if {len(block.start), len(block.shape), len(changed.shape)} != {len(rows)}:
        return False
    if not all(
        type(x) is int and x >= 0 for i, n, m in rows for x in (i, n, m - i - n)
    ):
        return False
    size, at, values = math.prod(block.shape), block.indices, block.values
    if not isinstance(values, np.ndarray) or values.dtype != changed.dtype:
        return False
    if at is None:
        return values.shape == (size,)
    if not isinstance(at, np.ndarray) or at.dtype.kind != "i" or not at.size:
        return False
    is_inside = at.shape == values.shape == (len(at),) and 0 <= at[0] <= at[-1] < size
    return is_inside and bool((at[1:] > at[:-1]).all())
