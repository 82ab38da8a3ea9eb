"""Arrays in 8 or 4 bits for each element, with a scale for each block of elements.

Blocks run along the last axis, and span several rows of narrow matrices: either axis
can be sharded, and the block of an element follows from the shape of the array, not
from its sharding.  A code is an element divided by the largest of its block, under a
root, which spends the codes on small elements: a square root with a sign for arrays of
both signs, and a fourth root for arrays that are never negative, such as mean squares,
whose square root is then equally accurate.  Blocks of 8 bits go back to Dettmers,
Lewis, Shleifer and Zettlemoyer, 2022, 8-bit Optimizers via Block-wise Quantization
(arXiv:2110.02861); their codes are read from tables instead.

Storing what was read does not change a bit, so an unchanged element is never altered:

1. The largest element of a block is exact, otherwise scales would drift: n * fl(1 / n)
   is exactly 1 in float32 for n = 7, 15, 127, 255, and stays so if it is squared.
2. If a block is not finite, its scale is infinite, and a code of 0 means NaN.
3. Numbers below the least normal one may be read as 0, depending on the device.  With
signs they become 0; without signs, positive numbers become at least the least normal
number.
"""

import functools as ft
import math
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .placement import apart


class Form(NamedTuple):
    """How an array is coded.

    bits: number of bits for each element, 8 or 4.
    is_signed: whether elements may be negative.
    block: number of elements of a row that share a scale.
    rows: number of rows that share a scale.
    """

    bits: int
    is_signed: bool
    block: int
    rows: int = 1

    @property
    def most(self) -> int:
        """The code of the largest element of a block."""
        return 2 ** (self.bits - self.is_signed) - 1

    @property
    def pieces(self) -> int:
        """The number of pieces in which blocks are packed."""
        return 8 // self.bits


class _Fields(NamedTuple):
    codes: Any
    scales: Any


class Coded(_Fields):
    """An array in codes, a node that replaces the array in a state.

    The class says how it is coded, so that the node holds only arrays, and any format
    can store it as a named tuple.

    codes: int8 or uint8, of the shape of the array; in 4 bits half as long along the
        last axis: an element of the first half of its block in bits 0-3 of a byte, one
        of the second half in the others.
    scales: float32, one for each block, with as many axes as the array: the largest
        size of its elements.
    """

    __slots__ = ()
    bits: ClassVar[int]
    is_signed: ClassVar[bool]

    @property
    def shape(self) -> tuple[int, ...]:
        *front, n = self.codes.shape
        return (*front, n * 8 // self.bits)

    @property
    def form(self) -> Form:
        *front, n = self.shape
        *above, blocks = self.scales.shape
        rows = front[-1] // above[-1] if front and above[-1] else 1
        return Form(self.bits, self.is_signed, n // blocks, rows)


class Signed8(Coded):
    __slots__ = ()
    bits, is_signed = 8, True


class Positive8(Coded):
    __slots__ = ()
    bits, is_signed = 8, False


class Signed4(Coded):
    __slots__ = ()
    bits, is_signed = 4, True


class Positive4(Coded):
    __slots__ = ()
    bits, is_signed = 4, False


_KINDS = {(x.bits, x.is_signed): x for x in (Signed8, Positive8, Signed4, Positive4)}


def coded_as(form: Form, codes: Any, scales: Any) -> Coded:
    """The node of an array that is coded in this form."""
    return _KINDS[form.bits, form.is_signed](codes, scales)


def is_coded(x: object) -> bool:
    return isinstance(x, Coded)


def holds_codes(tree: object) -> bool:
    return any(map(is_coded, jax.tree.leaves(tree, is_leaf=is_coded)))


def block_within(
    length: int, block: int, bits: int, least: int | None = None
) -> int | None:
    """The largest block that divides an axis of this length; `None` if none does."""
    least = max(1, math.ceil(block / 4)) if least is None else least
    step = 2 if bits == 4 else 1
    fits = range(min(block, length), least - 1, -1)
    return next((b for b in fits if length % b == 0 and b % step == 0), None)


# The number of devices over which either of the last axes can be sharded without
# cutting a block, unless a block would have fewer elements than these: scales should
# take at most 1 / 24 byte for each element.
_DEVICES, _FEWEST = 8, 96


def tile_within(shape: tuple[int, ...], most: int, bits: int) -> tuple[int, int] | None:
    """The numbers of elements of a row and of rows in a block; `None` as above.

    An axis can be sharded if the number of devices divides its length.
    """
    *_, height, length = 1, *shape
    if (block := block_within(length, most, bits)) is None:
        return None
    part = length // math.gcd(length, _DEVICES)
    narrow = block_within(part, most, bits, least=1)
    if narrow is None:
        return block, 1
    above = height // math.gcd(height, _DEVICES)
    rows = block_within(above, most // narrow, 8, least=1) or 1
    return (narrow, rows) if narrow * rows >= _FEWEST else (block, 1)


# The least normal number: below it a device may flush to zero.
_TINY = np.finfo(np.float32).tiny
# The keys of that number and of infinity; those of NaN are larger.
_LEAST, _INFINITE = np.uint32(0x0080_0000 << 1), np.uint32(0x7F80_0000 << 1)


def encode(x: jax.Array, form: Form) -> Coded:
    """An array of real numbers in codes."""
    x = _in_blocks(x, form)
    # As they are packed, in halves for 4 bits: XLA would recompute an array for each
    # slice of it.
    pieces = [x] if form.pieces == 1 else jnp.split(x, form.pieces, axis=-1)
    keys = [_keys(x, form) for x in pieces]
    scales = _scales(keys, form)
    beside = _beside(scales, form.rows)
    codes = _packed([_codes(key, beside, form) for key in keys], form)
    return coded_as(form, codes, scales[..., 0])


def encode_by(x: jax.Array, scales: jax.Array, form: Form) -> Coded:
    """An array in codes, with known scales, as kernels of a GPU write it."""
    keys = _keys(_in_blocks(x, form), form)
    codes = _codes(keys, _beside(scales[..., None], form.rows), form)
    if form.pieces == 1:
        return coded_as(form, _packed([codes], form), scales)
    # Codes of half the size are written by a kernel of their own, which reads bytes.
    codes = jax.lax.optimization_barrier(codes.astype(jnp.int8))
    pieces = jnp.split(codes, form.pieces, axis=-1)
    return coded_as(form, _packed(pieces, form), scales)


def scales_of(x: jax.Array, form: Form) -> jax.Array:
    """The scales of the codes of an array, by one reduction."""
    return _scales([_keys(_in_blocks(x, form), form)], form)[..., 0]


def _in_blocks(x: jax.Array, form: Form) -> jax.Array:
    return apart(x.astype(jnp.float32), -1, form.block)


def _scales(keys: list[jax.Array], form: Form) -> jax.Array:
    largest = [jnp.max(key, axis=-1, keepdims=True) for key in keys]
    most = ft.reduce(jnp.maximum, largest)
    if form.rows > 1:  # of neighbouring rows, of (..., rows, blocks, 1)
        most = apart(most, -3, form.rows).max(-3)
    return jnp.where(most < _INFINITE, _sizes(most, form), jnp.inf)


def _codes(keys: jax.Array, scales: jax.Array, form: Form) -> jax.Array:
    size, is_finite = _sizes(keys, form), jnp.isfinite(scales)
    # XLA may multiply by the reciprocal, which for the largest scales is flushed to 0.
    shrink = jnp.where(scales > 2.0**64, np.float32(2.0**-64), 1)
    divisor = jnp.where((scales > 0) & is_finite, scales * shrink, 1)
    is_infinite = (keys | 1) == (_INFINITE | 1)
    unit = jnp.where(is_finite, size * shrink / divisor, is_infinite.astype(size.dtype))
    root = jnp.sqrt(unit) if form.is_signed else jnp.sqrt(jnp.sqrt(unit))
    if not form.is_signed:
        codes = _dithered(root * form.most, unit, keys, form)
        return jnp.where(is_finite & (size > 0), jnp.maximum(codes, 1), codes)
    codes = jnp.round(root * form.most)
    # Numbers that would be read as 0 are stored as 0.
    is_lost = is_finite & (_powered(codes, form) * scales < _TINY)
    return jnp.where(is_lost, 0, jnp.where(keys & 1 == 1, -codes, codes))


def _dithered(
    root: jax.Array, unit: jax.Array, keys: jax.Array, form: Form
) -> jax.Array:
    """The codes of mean squares, those of 8 bits above the middle right on average.

    There codes are 1.6 to 3 % apart, and a mean changes by less than half of that in a
    step.  Rounded to nearest, only large squares would move it, and only upwards:
    elements of about one size would double in 10,000 steps with a decay rate of 0.999.
    So bits of the number choose one of both neighbours.  Smaller codes are further
    apart, where that would cost more than it corrects.

    root, unit: sizes relative to the scale, under the root times the largest code, and
        as they are.
    """
    nearest = jnp.round(root)
    if form.bits < 8:
        return nearest
    low = jnp.floor(root)
    least, most = _powered(low, form), _powered(low + 1, form)
    # Of 4096 parts, so that a number that was read is stored as it is.  Without the
    # last bits, in which two programs may differ.
    part = (unit - least) / (most - least) * 4096
    chance = ((keys >> 9) * np.uint32(0x9E3779B1)) >> 20
    codes = jnp.where(part > chance.astype(part.dtype) + 0.5, low + 1, low)
    return jnp.where(2 * low > form.most, codes, nearest)


# One program for arrays outside of `jit`.
encoded = jax.jit(encode, static_argnums=1)


def decode(x: Coded) -> jax.Array:
    """The array in float32."""
    scales = _beside(jnp.asarray(x.scales)[..., None], x.form.rows)
    pieces = [_read(codes, scales, x.form) for codes in _unpacked(x.codes, x.form)]
    whole = pieces[0] if len(pieces) == 1 else jnp.concatenate(pieces, axis=-1)
    return whole.reshape(x.shape)


def whole_codes(x: Coded) -> jax.Array:
    """The code of each element in a byte of its own, as kernels of a GPU read them."""
    if x.form.pieces == 1:
        return x.codes
    codes = jnp.concatenate(_unpacked(x.codes, x.form), axis=-1)
    # XLA would otherwise write in float32 what it computes from them.
    return jax.lax.optimization_barrier(codes.reshape(x.shape))


def read(codes: jax.Array, scales: jax.Array, form: Form) -> jax.Array:
    """The array in float32, from the code of each element and its scales."""
    scales = _beside(scales[..., None], form.rows)
    return _read(apart(codes, -1, form.block), scales, form).reshape(codes.shape)


def _read(codes: jax.Array, scales: jax.Array, form: Form) -> jax.Array:
    value = _powered(codes.astype(jnp.float32), form) * scales
    if form.is_signed:
        return value
    return jnp.where(codes > 0, jnp.maximum(value, _TINY), value)


def opened(x: Any) -> Any:
    """The array in float32 if `x` is coded, otherwise `x`."""
    return decode(x) if isinstance(x, Coded) else x


def as_found(x: Any, old: Any) -> Any:
    """A new array, coded if the old one is."""
    return encode(x, old.form) if isinstance(old, Coded) else x


def coded_zeros(shape: tuple[int, ...], form: Form) -> tuple:
    """The shapes, dtypes and values of codes and scales of zeros."""
    *front, n = shape
    is_pair = form.bits == 4
    dtype = jnp.uint8 if is_pair or not form.is_signed else jnp.int8
    value = 0x88 if is_pair and form.is_signed else 0
    codes = ((*front, n * form.bits // 8), dtype, value)
    if form.rows > 1:
        front[-1] //= form.rows
    return codes, ((*front, n // form.block), jnp.float32, 0)


def _beside(scales: jax.Array, rows: int) -> jax.Array:
    """Each scale repeated for all of its rows."""
    if rows == 1:
        return scales
    *front, height, blocks, one = scales.shape
    repeated = jnp.broadcast_to(
        jnp.expand_dims(scales, -3), (*front, height, rows, blocks, one)
    )
    return repeated.reshape(*front, height * rows, blocks, one)


def _keys(x: jax.Array, form: Form) -> jax.Array:
    """Integers in the order of the sizes of elements, and the sign in the lowest bit.

    XLA on a CPU writes the operand of a maximum to memory, and recomputes it for other
    readers; a key serves all of them.  Its maximum of floats may skip NaN.
    """
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    keys = (bits << 1) | (bits >> 31)
    if form.is_signed:
        return keys
    is_negative = (keys & 1 == 1) & (keys <= (_INFINITE | 1))
    return jnp.where(is_negative, np.uint32(0), keys)


def _sizes(keys: jax.Array, form: Form) -> jax.Array:
    """The sizes of elements; those below the least normal number as stored."""
    # By the bits, since a comparison may flush subnormal numbers.
    size = jax.lax.bitcast_convert_type(keys >> 1, jnp.float32)
    if form.is_signed:
        return jnp.where(keys < _LEAST, 0, size)
    return jnp.where(keys > 1, jnp.where(keys < _LEAST, _TINY, size), 0)


def _powered(codes: jax.Array, form: Form) -> jax.Array:
    """The inverse of the root, with the sign of the code."""
    y = codes * np.float32(1 / form.most)
    return y * jnp.abs(y) if form.is_signed else jnp.square(jnp.square(y))


def _packed(pieces: list[jax.Array], form: Form) -> jax.Array:
    """Codes in blocks as they are stored, without the axis of blocks."""
    if form.bits == 4:
        first, second = [
            (x + 8 if form.is_signed else x).astype(jnp.uint8) for x in pieces
        ]
        codes = first | (second << 4)
    else:
        codes = pieces[0].astype(jnp.int8 if form.is_signed else jnp.uint8)
    *front, blocks, length = codes.shape
    return codes.reshape(*front, blocks * length)


def _unpacked(codes: jax.Array, form: Form) -> list[jax.Array]:
    """The inverse of `_packed`, as numbers of either sign."""
    codes = jnp.asarray(codes)
    if form.bits == 8:
        return [apart(codes, -1, form.block)]
    pairs = apart(codes, -1, form.block // 2)
    pieces = [x.astype(jnp.int8) for x in (pairs & 15, pairs >> 4)]
    return [x - 8 for x in pieces] if form.is_signed else pieces
