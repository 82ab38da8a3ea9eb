"""A digest of the values of an array that does not depend on its sharding.

    sum of (w_i m_i) modulo 2^32,   m_i = (2654435761 (i + 1)) | 1

over the words w_i of 32 bits, or of the size of an element if that is less.  Odd
factors are invertible, so that the digest changes if a single element does.  Orbax's
files only have checksums of their indices; a flipped bit in the data goes unnoticed.

A sum can be computed in parts: each process adds up the shards that it holds, and none
waits for another.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


FACTOR = np.uint32(2654435761)
BLOCK = 2**15  # words at a time, so that temporary arrays stay in the cache
_FACTORS = np.arange(1, BLOCK + 1, dtype=np.uint32) * FACTOR


def digest(x: Any) -> int:
    """The digest of an array; that of an array of a CPU is computed by NumPy.

    x: an array of any dtype but random keys.
    """
    if isinstance(x, np.ndarray) or x.is_fully_addressable and is_on_cpu(x):
        return share(x)
    if x.sharding.memory_kind != (kind := _default_memory(x)):
        x = jax.device_put(x, x.sharding.with_memory_kind(kind))
    return int(_digest(x))


def share(x: Any) -> int:
    """The part of the digest that this process adds."""
    return sum(_of_block(*row, x.shape) for row in _blocks(x)) % 2**32


def _blocks(x: Any) -> Iterator[tuple[np.ndarray, tuple]]:
    """The blocks of an array in this process, each with its first index."""
    if isinstance(x, np.ndarray):
        yield x, (0,) * x.ndim
        return
    for shard in x.addressable_shards:
        if shard.replica_id == 0:
            yield np.asarray(shard.data), tuple(s.start or 0 for s in shard.index)


def _of_block(x: np.ndarray, first: tuple, shape: tuple) -> int:
    """The digest of a block of an array.

    first: the index of its first element in the array of this shape.
    """
    wide = max(1, x.dtype.itemsize // 4)  # words in an element
    runs = _runs(x.shape, first, shape, wide)
    words = np.ascontiguousarray(x)
    if not _is_small(x.dtype):
        words = words.reshape(-1).view(f"uint{min(8 * x.dtype.itemsize, 32)}")
    words = words.reshape(len(runs), -1) if x.size else words.reshape(0, 0)
    length, total = words.shape[1], 0
    some = max(1, BLOCK // max(1, length))
    starts = range(0, len(words), some), range(0, length, BLOCK)
    for i, j in itertools.product(*starts):
        w = words[i : i + some, j : j + BLOCK]
        if _is_small(w.dtype):
            w = w.astype(np.float32).astype(np.int32).view(np.uint32)
        start = (runs[i : i + some] + np.uint32(j % 2**32)) * FACTOR
        factors = _FACTORS[: w.shape[1]] + start[:, None]
        factors |= np.uint32(1)
        factors *= w
        total += int(factors.sum(dtype=np.uint32))
    return total


def _runs(block: tuple, first: tuple, shape: tuple, wide: int) -> np.ndarray:
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


def is_on_cpu(x: jax.Array) -> bool:
    return next(iter(x.sharding.device_set)).platform == "cpu"


def _default_memory(x: jax.Array) -> Any:
    return next(iter(x.sharding.device_set)).default_memory().kind


@jax.jit
def _digest(x):
    return _sum(_words(x))


def _words(x: jax.Array) -> list:
    """Unsigned words, each shaped like the array."""
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return [*_words(jnp.real(x)), *_words(jnp.imag(x))]
    if x.dtype == bool or _is_small(x.dtype):
        x = x.astype(np.float32).astype(np.int32)
    if x.dtype.itemsize == 8:
        pairs = jax.lax.bitcast_convert_type(x, np.uint32)
        return [pairs[..., 0], pairs[..., 1]]
    bits = jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}")
    return [bits.astype(np.uint32)]


def _is_small(dtype: Any) -> bool:
    """Whether elements have fewer bits than a byte."""
    return dtype.name in ("int2", "uint2", "int4", "uint4", "float4_e2m1fn")


def _sum(words: list) -> jax.Array:
    total = jnp.uint32(0)
    for n, w in enumerate(words):
        w = jnp.atleast_1d(w)
        index, stride = jnp.full(w.shape, n + 1, np.uint32), len(words)
        for axis in reversed(range(w.ndim)):
            along = jnp.arange(w.shape[axis], dtype=np.uint32)
            shape = [-1 if i == axis else 1 for i in range(w.ndim)]
            index = index + (along * np.uint32(stride % 2**32)).reshape(shape)
            stride *= w.shape[axis]
        total = total + jnp.sum(w * (index * FACTOR | np.uint32(1)), dtype=np.uint32)
    return total
