"""Lists of arrays as one real vector, on which the methods of this folder work."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from .._minimize.pack import join, split


class Flat:
    """How the real parts of some arrays follow each other in a vector."""

    def __init__(self, like: list, dtype: Any):
        """like: arrays, or their shapes and dtypes; dtype: that of the vector."""
        self._like, self._dtype = like, dtype
        self._is_complex = [jnp.issubdtype(x.dtype, jnp.complexfloating) for x in like]
        self.size = sum(
            math.prod(x.shape) * (1 + pair)
            for x, pair in zip(like, self._is_complex, strict=True)
        )

    def join(self, xs: list) -> jax.Array:
        """The vector of some arrays."""
        parts = [x.reshape(-1).astype(self._dtype) for x in split(xs)]
        return jnp.concatenate(parts) if parts else jnp.zeros(0, self._dtype)

    def split(self, vector: jax.Array) -> list:
        """The arrays in a vector, in their own shapes and dtypes."""
        parts, start = [], 0
        for x, pair in zip(self._like, self._is_complex, strict=True):
            size, dtype = math.prod(x.shape), jnp.finfo(x.dtype).dtype
            for _ in range(1 + pair):
                part = jax.lax.slice(vector, (start,), (start + size,))
                parts.append(part.reshape(x.shape).astype(dtype))
                start += size
        return join(parts, self._is_complex)
