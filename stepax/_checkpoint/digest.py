"""A digest of the values of an array that does not depend on its sharding.

    sum of (w_i m_i) modulo 2^32,   m_i = (2654435761 (i + 1)) | 1

over the words w_i of 32 bits, or of the size of an element if that is less.  Odd
factors are invertible, so that the digest changes if a single element does.  Orbax's
files only have checksums of their indices; a flipped bit in the data goes unnoticed.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def digest(x: Any) -> int:
    """The digest of an array; that of a NumPy array is computed on the host.

    x: an array of any dtype but random keys.
    """
    if isinstance(x, np.ndarray):
        return int(_sum(np, _words(np, x))[0])
    if x.sharding.memory_kind != (kind := _default_memory(x)):
        x = jax.device_put(x, x.sharding.with_memory_kind(kind))
    return int(_digest(x)[0])


def _default_memory(x: jax.Array) -> Any:
    return next(iter(x.sharding.device_set)).default_memory().kind


@jax.jit
def _digest(x):
    return _sum(jnp, _words(jnp, x))


def _words(xp: Any, x: Any) -> list:
    """Unsigned words, each shaped like the array."""
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return [*_words(xp, xp.real(x)), *_words(xp, xp.imag(x))]
    if x.dtype == bool or _is_small(x.dtype):
        x = x.astype(np.float32).astype(np.int32)
    if x.dtype.itemsize == 8:
        pairs = _bits(xp, x, np.uint32)
        return [pairs[..., 0], pairs[..., 1]]
    size = 8 * x.dtype.itemsize
    return [_bits(xp, x, np.dtype(f"uint{size}")).astype(np.uint32)]


def _is_small(dtype: Any) -> bool:
    """Whether elements have fewer bits than a byte."""
    return dtype.name in ("int2", "uint2", "int4", "uint4", "float4_e2m1fn")


def _bits(xp: Any, x: Any, dtype: Any) -> Any:
    if xp is jnp:
        return jax.lax.bitcast_convert_type(x, dtype)
    wide = x.dtype.itemsize // np.dtype(dtype).itemsize
    flat = np.ascontiguousarray(x).reshape(-1).view(dtype)
    return flat.reshape(x.shape if wide == 1 else (*x.shape, wide))


def _sum(xp: Any, words: list) -> Any:
    total = xp.zeros(1, np.uint32)  # an array: NumPy warns when scalars overflow
    for n, w in enumerate(words):
        w = xp.atleast_1d(w)
        index, stride = xp.full(w.shape, n + 1, np.uint32), len(words)
        for axis in reversed(range(w.ndim)):
            along = xp.arange(w.shape[axis], dtype=np.uint32)
            shape = [-1 if i == axis else 1 for i in range(w.ndim)]
            index = index + (along * np.uint32(stride % 2**32)).reshape(shape)
            stride *= w.shape[axis]
        factor = index * np.uint32(2654435761) | np.uint32(1)
        total = total + xp.sum(w * factor, dtype=np.uint32).reshape(1)
    return total
