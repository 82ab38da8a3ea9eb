"""Exact conversion between the values of a tree and arrays that a file can store.

Without x64 JAX would truncate 64-bit values of NumPy and Python.  So they are written
by NumPy, and an entry records the library that they belong to.
"""

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .._engine.base import ArrayTree, as_array
from .._engine.trees.paths import fits, fitted


PYTHON, SCALAR, NUMPY, JAX = "python", "scalar", "numpy", ""

_NUMBERS = (bool, int, float, complex)


def kind_of(x: Any) -> str:
    """The library of a value: Python, NumPy (scalar or array), or JAX."""
    if isinstance(x, np.generic):  # `np.float64` is also a `float`
        return SCALAR
    if isinstance(x, np.ndarray):
        return NUMPY
    return PYTHON if isinstance(x, _NUMBERS) else JAX


def shape_and_dtype(x: Any) -> tuple[tuple[int, ...], Any]:
    """Shape and dtype as stored; random keys have a dtype of their own."""
    kind = kind_of(x)
    if kind == PYTHON:  # 64 bits, whatever the configuration of JAX
        return (), np.asarray(x).dtype
    if kind != JAX:
        return x.shape, x.dtype
    # A `ShapeDtypeStruct` may have a dtype wider than JAX's arrays.
    typed = x if isinstance(x, jax.ShapeDtypeStruct) else jax.typeof(as_array(x))
    return typed.shape, typed.dtype


def require_known(name: str, x: Any) -> None:
    """Raise for an array whose values are not known: a traced or a deleted one."""
    if isinstance(x, Tracer):
        raise TypeError(
            f"`{name}` is traced, so that its values are not known: make the call "
            "outside of `jit`, `vmap` and `grad`"
        )
    if isinstance(x, jax.Array) and x.is_deleted():
        raise ValueError(
            f"`{name}` was deleted, as what is donated to a program is: use what the "
            "program returned, or copy it first"
        )


def storable(name: str, x: Any) -> Any:
    """A numeric array; one that each of several processes holds is one of NumPy."""
    if kind_of(x) == JAX:
        x = as_array(x)
        require_known(name, x)
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x = jax.random.key_data(x)
        is_local = jax.process_count() > 1 and x.is_fully_addressable
        return np.asarray(x) if is_local else x
    require_numbers(name, x)
    found = np.asarray(x)
    return found.astype(found.dtype.newbyteorder("="), copy=False)


def require_numbers(name: str, x: Any) -> None:
    """Raise a `TypeError` for text, dates and objects, and for long integers."""
    if kind_of(x) == JAX:
        return
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"`{name}` is a masked array: take its data and its mask")
    dtype = np.asarray(x).dtype
    if not _is_numeric(dtype):
        is_long = isinstance(x, int)  # above 64 bits NumPy makes it an object
        what = "an integer of more than 64 bits" if is_long else f"of {dtype!r}"
        raise TypeError(
            f"`{name}` is {what}, which a checkpoint cannot hold; expected numbers of "
            "at most 64 bits, or 128 if complex"
        )


def _is_numeric(dtype: np.dtype) -> bool:
    if dtype == np.dtype(bool):
        return True
    if dtype.kind in "mMOSU" or not jnp.issubdtype(dtype, np.number):
        return False
    most = 16 if jnp.issubdtype(dtype, np.complexfloating) else 8
    return dtype.itemsize <= most


def is_finite(name: str, x: Any, or_infinite: bool) -> bool:
    """Whether what this process holds of an array has no NaN, and no infinity."""
    x = storable(name, x)
    if not jnp.issubdtype(x.dtype, np.inexact):
        return True
    is_here = isinstance(x, np.ndarray)
    xp, parts = (np, [x]) if is_here else (jnp, [s.data for s in x.addressable_shards])
    if or_infinite:
        return not any(xp.isnan(part).any() for part in parts)
    return all(xp.isfinite(part).all() for part in parts)


def as_bytes(x: Any) -> Any:
    """The same bits in a dtype that Orbax can write: TensorStore lacks these three."""
    if x.dtype.name not in _AS_BYTES:
        return x
    return x.view(np.uint8) if x.dtype.name == "float8_e4m3" else x.astype(np.uint8)


def of_bytes(x: Any, dtype: str) -> Any:
    """The inverse of `as_bytes`."""
    if dtype not in _AS_BYTES:
        return x
    kind = jnp.dtype(dtype)
    return x.view(kind) if dtype == "float8_e4m3" else x.astype(kind)


_AS_BYTES = ("uint2", "uint4", "float8_e4m3")


def stored_as(entry: Any) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype of what is in the files for an array."""
    if entry.key_kind:
        data = jax.eval_shape(
            jax.random.key_data, jax.random.key(0, impl=entry.key_kind)
        )
        return (*entry.shape, *data.shape), data.dtype
    is_byte = entry.dtype in _AS_BYTES
    return entry.shape, np.dtype(np.uint8 if is_byte else jnp.dtype(entry.dtype))


def is_wide(dtype: Any) -> bool:
    """Whether JAX, as configured, would narrow this dtype."""
    dtype = jnp.dtype(dtype)
    return jax.dtypes.canonicalize_dtype(dtype) != dtype


def traceable(tree: ArrayTree) -> Any:
    """A tree of the same shapes that JAX can trace, whatever its values."""
    return jax.tree.map(_traceable, tree)


def _is_long(x: int) -> bool:
    return abs(x) >= 2**31


def _traceable(x: Any) -> Any:
    if type(x) is int and _is_long(x):
        return np.zeros((), np.int32)
    if not isinstance(x, np.generic | np.ndarray) or not is_wide(x.dtype):
        return x
    narrow = jax.dtypes.canonicalize_dtype(x.dtype)
    return np.broadcast_to(np.zeros((), narrow), x.shape)


def restored(entry: Any, leaf: Any, value: Any, kind: str | None, is_made: bool) -> Any:
    """Convert a saved value to the form of a leaf of the template.

    kind: its library when saved; `None` for a fresh value.
    is_made: whether `leaf` is JAX's abstract value for a result of `tx.init`, which may
        be narrower; values of NumPy and Python are then unchanged.
    """
    kind = kind_of(value) if kind is None else kind
    value = np.asarray(value) if kind_of(value) != JAX else value
    wanted, dtype = kind_of(leaf), shape_and_dtype(leaf)[1]
    if is_made and _is_narrowed(leaf, kind, value):
        wanted, dtype = kind, value.dtype
    if _is_key(dtype) or _is_key(value.dtype):
        return fitted(entry.key, entry.names, leaf, value)
    if wanted == PYTHON and dtype.kind in "iu" and value.dtype.kind in "iu":
        dtype = value.dtype  # Python integers have any size
    if not (_is_numeric(dtype) and fits(value.dtype, dtype)):
        raise TypeError(
            f"the value at `{entry.key}` is of dtype {dtype}, to which the new value "
            f"of dtype {value.dtype} cannot be converted"
        )
    value = _cast(entry, value, dtype)
    if wanted == PYTHON:
        return np.asarray(value).item()
    if not is_wide(dtype):
        if isinstance(value, np.ndarray):
            value = jax.device_put(value)  # of aligned memory a CPU makes no copy
        return fitted(entry.key, entry.names, leaf, value)
    value = np.asarray(value)
    return value[()] if wanted == SCALAR else value


def _is_key(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jax.dtypes.extended)


def _is_narrowed(leaf: Any, kind: str, value: Any) -> bool:
    """Whether a leaf is JAX's narrowed form of such a NumPy or Python value."""
    if kind == PYTHON and value.dtype.kind in "iu" and _is_long(int(value)):
        return leaf.dtype.kind in "iu"
    if kind == JAX or jax.dtypes.canonicalize_dtype(value.dtype) != leaf.dtype:
        return False
    return leaf.weak_type if kind == PYTHON else is_wide(value.dtype)


def _cast(entry: Any, x: Any, dtype: Any) -> Any:
    """Cast with rounding, but without overflow, or another kind of number."""
    if x.dtype == dtype:
        return x
    with np.errstate(over="ignore", invalid="ignore"):
        try:
            new = x.astype(dtype)
        except TypeError:  # some narrow dtypes can only be cast via a wide one
            new = x.astype(np.float64).astype(dtype)
    # NumPy says that each narrow float can be cast to any other.
    is_wider = np.dtype(dtype).isbuiltin == 1 and np.can_cast(x.dtype, dtype)
    if not is_wider and not all(_held(x, new)):
        raise ValueError(
            f"the value at `{entry.key}` was saved as {x.dtype}, and has numbers that "
            f"{dtype}, the dtype of the template, cannot hold"
        )
    return new


def _held(old: Any, new: Any) -> Iterator[Any]:
    """For each block, whether the conversion only rounded."""
    if not isinstance(old, np.ndarray):  # JAX has no wider dtype, and needs none
        yield _is_near(jnp, old, new) if old.size else True
        return
    old, new = old.reshape(-1), new.reshape(-1)
    for i in range(0, old.size, BLOCK):
        yield _is_near(np, *(x[i : i + BLOCK] for x in (old, new)))


BLOCK = 2**16  # elements at a time, so that wide copies of them are small


def _is_near(xp: Any, old: Any, new: Any) -> Any:
    if jnp.issubdtype(new.dtype, np.integer):
        limits = jnp.iinfo(new.dtype)
        return limits.min <= int(old.min()) and int(old.max()) <= limits.max
    wide = np.float32 if xp is jnp else np.float64
    if jnp.issubdtype(new.dtype, np.complexfloating):
        wide = np.result_type(wide, np.complex64)
    pairs = [(f(old.astype(wide)), f(new.astype(wide))) for f in (xp.real, xp.imag)]
    limits = jnp.finfo(new.dtype)
    most = float(limits.max)
    # Below this, the nearest number is the largest: half a step further.
    end = most + math.ldexp(float(limits.eps), math.frexp(most)[1] - 2)
    return all(_alike(xp, a, b, end) for a, b in pairs)


def _alike(xp: Any, a: Any, b: Any, end: float) -> bool:
    """NaN, infinity and zero remain what they are, and no number is too large."""
    is_number, is_kept = xp.isfinite(a), (a == b) | (xp.isnan(a) & xp.isnan(b))
    fits = xp.isfinite(b) & (abs(a) < end) & ((a != 0) | (b == 0))
    return bool(xp.where(is_number, fits, is_kept).all())
