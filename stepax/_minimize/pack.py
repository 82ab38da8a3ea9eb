"""Many arrays as few vectors, on which a method takes as few operations as on one.

Complex arrays become two real ones.  What may lie on several devices stays by itself:
to gather it would be to send it.
"""

import math

import jax
import jax.numpy as jnp


# Entries of an array that is gathered wherever it lies: it is sent in no time.
_SHORT = 4096


class Pack:
    """How the real parts of some arrays are gathered, by dtype.

    has_complex: whether some have two parts.
    """

    def __init__(self, xs: list, is_local: bool):
        """is_local: whether all of them are known to be on one device."""
        self._complex = [jnp.iscomplexobj(x) for x in xs]
        self.has_complex = any(self._complex)
        parts = split(xs)
        self._shapes = [x.shape for x in parts]
        self._groups: dict = {}
        for i, x in enumerate(parts):
            is_free = is_local or x.size <= _SHORT
            is_free &= not any(jax.typeof(x).sharding.spec)
            self._groups.setdefault(x.dtype if is_free else i, []).append(i)

    def pack(self, xs: list) -> list:
        """The vectors of some arrays."""
        parts = split(xs)

        def gather(key, at):
            if isinstance(key, int):
                return parts[key]
            flat = [parts[i].reshape(-1) for i in at]
            return flat[0] if len(flat) == 1 else jnp.concatenate(flat)

        return [gather(*group) for group in self._groups.items()]

    def unpack(self, vectors: list) -> list:
        """The arrays in some vectors."""
        parts: list = [None] * len(self._shapes)
        for at, x in zip(self._groups.values(), vectors, strict=True):
            sizes = [math.prod(self._shapes[i]) for i in at]
            # Its derivative is one concatenation, that of slices as many sums.
            flat = jax.lax.split(x.reshape(-1), sizes) if len(at) > 1 else [x]
            for i, y in zip(at, flat, strict=True):
                parts[i] = y.reshape(self._shapes[i])
        return join(parts, self._complex)


def split(xs: list) -> list:
    """Real arrays: complex ones as two."""
    parts = lambda x: [x.real, x.imag] if jnp.iscomplexobj(x) else [x]
    return [part for x in xs for part in parts(x)]


def join(parts: list, is_complex: list[bool]) -> list:
    """What `split` has split."""
    rest = iter(parts)
    pair = lambda real: jax.lax.complex(real, next(rest))
    return [pair(next(rest)) if is_pair else next(rest) for is_pair in is_complex]
