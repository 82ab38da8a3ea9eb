"""Concatenating many arrays into a few vectors, to reduce the number of operations.

Complex arrays become two real ones.
"""

import jax
import jax.numpy as jnp

from .._engine.arrays.joined import Joined
from .._linesearch.line import SHORT


class Pack:
    """How the real parts of some arrays are concatenated, by dtype.

    has_complex: whether some arrays are complex.
    """

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
        """The vectors of some arrays."""
        pairs = zip(self._is_flat, split(xs), strict=True)
        flat = [x.reshape(-1) if is_flat else x for is_flat, x in pairs]
        return self._joined.join(flat)

    def unpack(self, vectors: list) -> list:
        """The arrays in some vectors."""
        pairs = zip(self._joined.split(vectors), self._shapes, strict=True)
        return join([x.reshape(shape) for x, shape in pairs], self._complex)


def is_placed(x: jax.Array) -> bool:
    """Whether an explicit mesh divides an array."""
    return any(jax.typeof(x).sharding.spec)


def split(xs: list) -> list:
    """Split complex arrays into real and imaginary parts."""
    parts = lambda x: [x.real, x.imag] if jnp.iscomplexobj(x) else [x]
    return [part for x in xs for part in parts(x)]


def join(parts: list, is_complex: list[bool]) -> list:
    """The inverse of `split`."""
    rest = iter(parts)
    pair = lambda real: jax.lax.complex(real, next(rest))
    return [pair(next(rest)) if is_pair else next(rest) for is_pair in is_complex]
