"""Concatenating arrays into a few vectors, or one; complex arrays become two real ones.

Vectors reduce the number of operations, and methods for few parameters need just one.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from ..._engine.arrays.joined import Joined
from ..._linesearch.line import SHORT


class Pack:
    """How the real parts of some arrays are concatenated, by dtype."""

    def __init__(self, xs: list, is_local: bool):
        """is_local: whether all arrays are known to be on one device."""
        self._complex = [jnp.iscomplexobj(x) for x in xs]
        self.has_complex = any(self._complex)
        parts = split(xs)
        self._shapes = [x.shape for x in parts]
        is_free = lambda x: (is_local or x.size <= SHORT) and not is_placed(x)
        self._is_flat = [is_free(x) for x in parts]
        rows = enumerate(zip(self._is_flat, parts, strict=True))
        kinds = [x.dtype if is_flat else i for i, (is_flat, x) in rows]
        self._joined = Joined(kinds, self._shapes)

    def pack(self, xs: list) -> list:
        pairs = zip(self._is_flat, split(xs), strict=True)
        flat = [x.reshape(-1) if is_flat else x for is_flat, x in pairs]
        return self._joined.join(flat)

    def unpack(self, vectors: list) -> list:
        pairs = zip(self._joined.split(vectors), self._shapes, strict=True)
        return join([x.reshape(shape) for x, shape in pairs], self._complex)


def is_placed(x: jax.Array) -> bool:
    """Whether an explicit mesh divides an array."""
    return any(jax.typeof(x).sharding.spec)


class Flat:
    """How the real parts of some arrays follow each other in one vector."""

    def __init__(self, like: list, dtype: Any):
        """like: arrays, or their shapes and dtypes; dtype: that of the vector."""
        self._like, self._dtype = like, dtype
        self._complex = [jnp.issubdtype(x.dtype, jnp.complexfloating) for x in like]
        pairs = zip(like, self._complex, strict=True)
        self.size = sum(math.prod(x.shape) * (1 + is_pair) for x, is_pair in pairs)

    def join(self, xs: list) -> jax.Array:
        parts = [x.reshape(-1).astype(self._dtype) for x in split(xs)]
        return jnp.concatenate(parts) if parts else jnp.zeros(0, self._dtype)

    def split(self, vector: jax.Array) -> list:
        parts, start = [], 0
        for x, is_pair in zip(self._like, self._complex, strict=True):
            size, dtype = math.prod(x.shape), jnp.finfo(x.dtype).dtype
            for _ in range(1 + is_pair):
                part = jax.lax.slice(vector, (start,), (start + size,))
                parts.append(part.reshape(x.shape).astype(dtype))
                start += size
        return join(parts, self._complex)

    def sides(self, box: Any) -> Any:
        """The vectors of the lower and upper bounds of the arrays, or `None`."""
        shapes = [x.shape for x in self._like]
        return box and tuple(
            self.join(list(map(jnp.broadcast_to, side, shapes))) for side in box
        )


def split(xs: list) -> list:
    """Split complex arrays into real and imaginary parts."""
    pairs = ([x.real, x.imag] if jnp.iscomplexobj(x) else [x] for x in xs)
    return [part for parts in pairs for part in parts]


def join(parts: list, is_complex: list[bool]) -> list:
    rest = iter(parts)
    return [
        jax.lax.complex(next(rest), next(rest)) if is_pair else next(rest)
        for is_pair in is_complex
    ]


def rejoin(parts: list, like: list) -> list:
    """The inverse of `split` for arrays like these."""
    return join(parts, [jnp.iscomplexobj(x) for x in like])
