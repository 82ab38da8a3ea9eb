"""Master weights of bfloat16 parameters that store only the rounding error.

A bfloat16 number is the upper half of a float32.  If a float32 is rounded to the
nearest one, ties away from zero, the remainder is a signed integer, and both together
restore the float32, bit for bit; as in Apex and Megatron-LM (`store_param_remainders`).
With ties to even, one integer would represent two numbers.

Everything is done on bits: a compiler that may keep excess precision may take the
difference of a float32 and its bfloat16 for 0.
"""

import functools as ft
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .narrow import Widened


# From the bits of a remainder to its dtype.
KINDS = {16: jnp.dtype("int16"), 8: jnp.dtype("int8")}


class Halves(NamedTuple):
    """A float32 array of a state, stored in two parts.

    rounded: the array in bfloat16.
    remainder: the rounding error, int16 or int8.
    """

    rounded: rx.Params
    remainder: rx.ArrayTree


def halved(x: jax.Array, width: int) -> jax.Array | Halves:
    if x.dtype != jnp.float32:
        return x
    p = rounded(x, width)
    return Halves(p, remainder_of(x, p, width))


def whole(x: Any) -> jax.Array:
    return joined(*x) if is_halved(x) else x


def is_halved(x: object) -> bool:
    return isinstance(x, Halves)


def checked_width(name: str, remainder: object) -> int | None:
    if remainder is None or type(remainder) is int and remainder in KINDS:
        return remainder
    raise ValueError(
        f"`{name}`: `remainder` must be 16, 8 or `None`, but is {remainder!r}"
    )


def width_of(remainder: jax.Array) -> int:
    return remainder.dtype.itemsize * 8


def join(p: jax.Array, remainder: jax.Array) -> jax.Array:
    """The float32 of a bfloat16 parameter and its remainder."""
    bits = _bits(p).astype(jnp.int32)
    low = remainder.astype(jnp.int32) << (16 - width_of(remainder))
    # Added separately, and at least 0: if something has rounded an update, a parameter
    # that is 0 may have a remainder below 0.
    size = jnp.maximum(((bits & 0x7FFF) << 16) + low, 0)
    return jax.lax.bitcast_convert_type(((bits & 0x8000) << 16) | size, jnp.float32)


def rounded(master: jax.Array, width: int) -> jax.Array:
    """The bfloat16 parameter for a master weight with a remainder of `width` bits."""
    upper = (_kept(master, width) + (1 << (width - 1))) >> width
    sign = (_bits(master) >> 16) & 0x8000
    half = jax.lax.bitcast_convert_type((upper | sign).astype(jnp.uint16), jnp.bfloat16)
    return jnp.where(jnp.isnan(master), master.astype(jnp.bfloat16), half)


def remainder_of(master: jax.Array, p: jax.Array, width: int) -> jax.Array:
    """The part of a master weight that its parameter does not hold."""
    bits, most = _bits(p).astype(jnp.int32), 1 << (width - 1)
    rest = _kept(master, width) - ((bits & 0x7FFF) << width)
    is_alike = (_bits(master) < 0) == (bits & 0x8000 > 0)
    rest = jnp.where(is_alike, jnp.clip(rest, -most, most - 1), -most)
    return jnp.where(jnp.isfinite(master), rest, 0).astype(KINDS[width])


def _bits(x: jax.Array) -> jax.Array:
    kind = jnp.uint16 if x.dtype == jnp.bfloat16 else jnp.int32
    return jax.lax.bitcast_convert_type(x, kind)


def _kept(master: jax.Array, width: int) -> jax.Array:
    """The size of a master weight in the bits that are kept, ties away from zero."""
    size, unit = _bits(master) & 0x7FFFFFFF, 16 - width
    return size if unit == 0 else (size + (1 << (unit - 1))) >> unit


class Joined(Widened):
    """As `Widened`, with master weights joined from parameters and remainders."""

    def __init__(
        self,
        updates: rx.Updates,
        params: rx.Params,
        remainders: rx.ArrayTree,
        width: int,
    ):
        self.width = width
        super().__init__(updates, params, jnp.float32, remainders)

    def _opened(self, i, p, x):
        super()._opened(i, p, x)
        if x.dtype != KINDS[self.width]:
            raise ValueError(
                f"`masters` in the state are {x.dtype} at {self._gradients.path(i)}, "
                f"not {KINDS[self.width]}: was this state made with another "
                "`remainder`?"
            )
        return joined(jnp.asarray(p), jnp.asarray(x))

    def _moved(self, i, g, p, u):
        return _moved(self.width, jnp.asarray(p), self.stored[i], u)

    def _narrowed(self, p, m):
        return _halves(self.width, m)


joined = jax.jit(join)


@ft.partial(jax.jit, static_argnums=0)
def _halves(width, master):
    p = rounded(master, width)
    return p, remainder_of(master, p, width)


@ft.partial(jax.jit, static_argnums=0)
@rx.promote_freely
def _moved(width, p, master, u):
    new, wide = master + u.astype(jnp.float32), p.astype(jnp.float32)
    # In float32, as the difference of two bfloat16 numbers is not always a bfloat16;
    # and if even float32 rounds it, the remainder belongs to what `apply_updates` will
    # compute.
    change = rounded(new, width).astype(jnp.float32) - wide
    there = (wide + change).astype(jnp.bfloat16)
    return change, remainder_of(new, there, width)
