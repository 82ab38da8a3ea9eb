"""A digest of the values of an array that does not depend on its sharding.

    low   sum of (w_i m_i) modulo 2^32,    m_i = (2654435761 (i + 1)) | 1
    high  sum of (v_i m_i^2) modulo 2^32,  digest = low + 2^32 high

over the words w_i of 32 bits, or of the size of an element if that is less.  v_i is the
upper half of a word of 32 bits, or all of a shorter word, because an even number of
changed signs does not alter `low`.  Odd factors are invertible, so that the digest
changes if a single element does.  Orbax's files only have checksums of their indices; a
flipped bit in the data goes unnoticed.

Sums can be computed in parts: each process adds up the blocks that it holds, and none
waits for another.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np


FACTOR = np.uint32(2654435761)
BLOCK = 2**15  # words at a time, so that temporary arrays stay in the cache
_FACTORS = np.arange(1, BLOCK + 1, dtype=np.uint32) * FACTOR


def digest(x: Any) -> int:
    """The digest of an array except random keys, or what this process adds to it."""
    return total(of_block(*row, x.shape) for row in _blocks(x))


def total(shares: Iterable[int]) -> int:
    """The digest that these parts add up to."""
    found = [*shares]
    high = sum(x >> 32 for x in found) % 2**32
    return sum(found) % 2**32 + (high << 32)


def _blocks(x: Any) -> Iterator[tuple[np.ndarray, tuple]]:
    """The blocks of an array in this process, each with its first index."""
    if isinstance(x, np.ndarray):
        yield x, (0,) * x.ndim
        return
    for shard in x.addressable_shards:
        if shard.replica_id == 0:
            yield np.asarray(shard.data), tuple(s.start or 0 for s in shard.index)


def of_block(x: np.ndarray, first: Sequence[int], shape: tuple) -> int:
    """The digest of a block of an array, in which its first element has this index."""
    wide = max(1, x.dtype.itemsize // 4)  # words in an element
    runs = _runs(x.shape, first, shape, wide)
    words = np.ascontiguousarray(x)
    if not _is_small(x.dtype):
        words = words.reshape(-1).view(f"uint{min(8 * x.dtype.itemsize, 32)}")
    words = words.reshape(len(runs), -1) if x.size else words.reshape(0, 0)
    length, low, high = words.shape[1], 0, 0
    some = max(1, BLOCK // max(1, length))
    starts = range(0, len(words), some), range(0, length, BLOCK)
    for i, j in itertools.product(*starts):
        w = words[i : i + some, j : j + BLOCK]
        if _is_small(w.dtype):
            w = w.astype(np.int32).view(np.uint32)
        start = (runs[i : i + some] + np.uint32(j % 2**32)) * FACTOR
        factors = _FACTORS[: w.shape[1]] + start[:, None]
        factors |= np.uint32(1)
        low += int((w * factors).sum(dtype=np.uint32))
        factors *= factors
        factors *= w >> 16 if w.dtype == np.uint32 else w
        high += int(factors.sum(dtype=np.uint32))
    return low % 2**32 + (high % 2**32 << 32)


def _runs(block: tuple, first: Sequence[int], shape: tuple, wide: int) -> np.ndarray:
    """Where each run of successive elements of the array starts, modulo 2^32."""
    split = [k for k in range(len(shape)) if block[k] != shape[k]]
    last = max(split, default=0)  # axes after it are in the block as a whole
    found, stride = np.zeros(1, np.uint32), wide
    for k in reversed(range(len(shape))):
        along = np.arange(block[k] if k < last else 1, dtype=np.uint32)
        along = (along + np.uint32(first[k] % 2**32)) * np.uint32(stride % 2**32)
        found = (along[:, None] + found).reshape(-1)
        stride *= shape[k]
    return found


def _is_small(dtype: Any) -> bool:
    """Whether elements are integers of fewer bits than a byte."""
    return dtype.name in ("int2", "uint2", "int4", "uint4")
