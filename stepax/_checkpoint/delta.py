"""Which stored bits of a tree changed, to send weights on without the rest.

After a step with a small learning rate, most bfloat16 weights have the bits that they
had: their updates are rounded away.  A trainer can then send a few indices and values
to the programs that sample from the model, which get the same bits as from the whole.

Bits are compared, not numbers: 0.0 and -0.0 differ, and a NaN is equal to itself.
Blocks of floats and integers of up to 32 bits are compared where they are; only what
changed is moved.  Each block has digests of what it was and of what it becomes: changes
are applied to nothing else, and give nothing else.
"""

import functools as ft
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._engine.arrays.numerics import has_dtype
from .._engine.base import ArrayTree, is_none
from .._engine.functions.calls import explain_misuse
from .._engine.trees import errors
from .._engine.trees.paths import join
from .delta_file import Block, Changed, read, require_sound, write
from .digest import FACTOR, digest, of_block, total
from .values import require_known


class Delta(NamedTuple):
    """The result of `delta`.

    arrays: a dict from the paths of the arrays that changed to what changed in them.
    """

    arrays: Mapping[str, Changed]

    @property
    def nbytes(self) -> int:
        """Bytes of all indices and values."""
        blocks = [b for x in self.arrays.values() for b in x.blocks]
        indices = sum(b.indices.nbytes for b in blocks if b.indices is not None)
        return indices + sum(b.values.nbytes for b in blocks)

    def to_safetensors(self, file: Any) -> None:
        """Write to a file, which holds bits and so any dtype; an old one is replaced.

        In a run of several processes, each writes the changes that it holds, to a file
        of its own.

        file: path of the file.

        Raises a `ValueError` if it cannot be written, or is another process's.
        """
        write(file, self.arrays)

    @classmethod
    def from_safetensors(cls, file: Any) -> "Delta":
        """Read what `to_safetensors` wrote.

        file: path of the file.

        Raises a `ValueError` for a file that is missing, damaged or not of a delta.
        """
        return cls(read(file))


@explain_misuse
def delta(old: ArrayTree, new: ArrayTree, *, most: float | None = None) -> Delta:
    """Which stored bits differ between two trees of arrays, for `apply_delta`.

    old, new: trees of the same structure, shapes and dtypes, such as parameters before
        and after a step; leaves that are not arrays of numbers are left out.  Arrays of
        both that are sharded alike are compared shard by shard; in a run of several
        processes, each gets the changes in its own shards.
    most: largest share of the elements of a block for which indices are given; with
        more, all of its elements are.  By default where that takes fewer bytes.

    Raises a `ValueError` that names the path where structures, shapes or dtypes differ.
    """
    leaves, treedef = jax.tree_util.tree_flatten_with_path(old, is_leaf=is_none)
    try:
        others = treedef.flatten_up_to(new)
    except (ValueError, TypeError):
        raise errors.mismatch("new", new, "`old`", old) from None
    found, names = {}, _names([path for path, _ in leaves])
    for name, (_, x), y in zip(names, leaves, others, strict=True):
        if _is_array(x):
            _require_alike(name, x, y, "new")
            require_known(name, x)
            require_known(name, y)
            if blocks := tuple(filter(None, _differences(x, y, most))):
                found[name] = Changed(x.shape, np.dtype(x.dtype), blocks)
    return Delta(found)


def _names(paths: list[tuple]) -> list[str]:
    """The names of paths; if a "/" in a key makes two alike, it is written as "~1"."""
    names = [join(path) for path in paths]
    if len({*names}) == len(names):
        return names
    keys = [[join((key,)) for key in path] for path in paths]
    return [
        "/".join(x.replace("~", "~0").replace("/", "~1") for x in row) for row in keys
    ]


@explain_misuse
def apply_delta(old: ArrayTree, changes: Delta) -> ArrayTree:
    """The tree that `delta` was given as `new`, with the same bits.

    old: the tree that it was given as `old`, in any sharding whose shards are within
        the blocks of the changes; arrays of NumPy remain NumPy's, and none is modified.
    changes: the result of `delta`.

    Raises a `ValueError` that names the path for an array that is missing, of another
    shape or dtype, or that has not the values that the changes were found in or would
    not get those of `new`.  Digests show the latter, except of a block of which this
    process has only a part.
    """
    if not isinstance(changes, Delta):
        raise TypeError(f"`changes` is {errors.describe(changes)}, expected a `Delta`")
    leaves, treedef = jax.tree_util.tree_flatten_with_path(old, is_leaf=is_none)
    names = _names([path for path, _ in leaves])
    named = [(name, x) for name, (_, x) in zip(names, leaves, strict=True)]
    known = {name for name, x in named if _is_array(x)}
    if missing := [name for name in changes.arrays if name not in known]:
        raise ValueError(
            f"`changes` has {errors.list_some(missing)}, where `old` has no array"
        )
    return treedef.unflatten(
        _applied(name, x, changes.arrays.get(name)) for name, x in named
    )


def _is_array(x: Any) -> bool:
    is_one = isinstance(x, jax.Array | np.ndarray)
    return is_one and not jnp.issubdtype(x.dtype, jax.dtypes.extended)


def _require_alike(name: str, x: Any, y: Any, what: str) -> None:
    shape, dtype = (y.shape, y.dtype) if has_dtype(y) else (None, None)
    if (shape, dtype) != (x.shape, x.dtype):
        raise ValueError(
            f"`{what}` has shape {shape} and dtype {dtype} at {name}, expected "
            f"{x.shape} and {x.dtype} as in `old`"
        )


# --- comparing ------------------------------------------------------------------------


def _shards(x: Any) -> Iterable[tuple[tuple, Any]]:
    """The blocks of an array in this process, each once, with its first index."""
    if isinstance(x, np.ndarray):
        return [((0,) * x.ndim, x)]
    return {_first(s): s.data for s in x.addressable_shards}.items()


def _first(shard: Any) -> tuple:
    return tuple(s.start or 0 for s in shard.index)


def _differences(x: Any, y: Any, most: float | None) -> Iterator[Block | None]:
    is_alike = isinstance(x, jax.Array) and isinstance(y, jax.Array)
    if not (is_alike and x.sharding.is_equivalent_to(y.sharding, x.ndim)):
        x, y = np.asarray(x), np.asarray(y)
    for (start, a), (_, b) in zip(_shards(x), _shards(y), strict=True):
        yield _block(start, a, b, most)


def _block(start: tuple, a: Any, b: Any, most: float | None) -> Block | None:
    index = np.dtype(np.int64 if a.size >= 2**31 else np.int32)
    size = b.dtype.itemsize
    share = size / (size + index.itemsize) if most is None else most
    is_here = not _is_plain(a)
    a, b = (np.asarray(a), np.asarray(b)) if is_here else (a, b)
    mask = (_bytes(a) != _bytes(b)).any(-1) if is_here else _unequal(a, b)
    number = int(mask.sum())
    if number == 0:
        return None
    if number > share * b.size:
        places, values = None, np.asarray(b).reshape(-1)
    elif is_here:
        places = np.flatnonzero(mask).astype(index)
        values = b.reshape(-1)[places]
    else:
        # To a power of two, so that few programs are compiled.
        found = _taken(b, mask, 1 << (number - 1).bit_length())
        places, bits = (np.asarray(x)[:number] for x in found)
        places, values = places.astype(index), bits.view(b.dtype)
    return Block(start, b.shape, places, values, _digest(a), _digest(b))


def _is_plain(x: Any) -> bool:
    """Whether a device compares it: floats and integers of 8 to 32 bits."""
    is_whole = jnp.issubdtype(x.dtype, jnp.integer)
    is_real = is_whole or jnp.issubdtype(x.dtype, jnp.floating)
    if not (is_real and isinstance(x, jax.Array) and x.size < 2**31):
        return False
    bits = (jnp.iinfo if is_whole else jnp.finfo)(x.dtype).bits
    return bits == 8 * x.dtype.itemsize <= 32


def _bits(x: jax.Array) -> jax.Array:
    kind = f"uint{8 * np.dtype(x.dtype).itemsize}"
    return jax.lax.bitcast_convert_type(x, kind).reshape(-1)


def _bytes(x: np.ndarray) -> np.ndarray:
    """The bytes of each entry, (entries, bytes)."""
    return np.ascontiguousarray(x).reshape(-1, 1).view(np.uint8)


def _digest(x: Any) -> int:
    """The digest of a block, computed where it is."""
    if not _is_plain(x) or next(iter(x.devices())).platform == "cpu":
        return digest(np.asarray(x))
    low, high = map(int, _sums(x))
    return low + (high << 32)


@jax.jit
def _sums(x):
    """The two sums of `digest`."""
    words = _bits(x)
    factors = (jnp.arange(words.size, dtype=np.uint32) + np.uint32(1)) * FACTOR
    factors |= np.uint32(1)
    upper = words >> np.uint32(16) if words.dtype == np.uint32 else words
    rows = (words, factors), (upper, factors * factors)
    return [jnp.sum(w.astype(np.uint32) * f, dtype=np.uint32) for w, f in rows]


@jax.jit
def _unequal(a, b):
    return _bits(a) != _bits(b)


@ft.partial(jax.jit, static_argnums=2)
def _taken(b, mask, room):
    """The places where a mask is true, and the bits there; zeros fill up the rest."""
    places = jnp.flatnonzero(mask, size=room, fill_value=0)
    return places, _bits(b)[places]


# --- applying -------------------------------------------------------------------------


def _applied(name: str, x: Any, changed: Changed | None) -> Any:
    if changed is None:
        return x
    _require_alike(name, x, changed, "changes")
    require_known(name, x)
    require_sound(name, changed)
    for block in changed.blocks:
        # What was changed already may be changed again.
        if not _is_one_of((block.old, block.new), block, x):
            raise ValueError(
                f"`old` is not what `changes` were found in: `{name}` has other values"
            )
    if isinstance(x, np.ndarray):
        new = _written(x, (0,) * x.ndim, changed.blocks)
    else:
        parts = [
            _written(shard.data, _first(shard), changed.blocks)
            for shard in x.addressable_shards
        ]
        new = jax.make_array_from_single_device_arrays(x.shape, x.sharding, parts)
    if not all(_is_one_of((block.new,), block, new) for block in changed.blocks):
        raise ValueError(
            f"`changes` are damaged: `{name}` would have other values than in `new`"
        )
    return new


def _is_one_of(known: tuple, block: Block, x: Any) -> bool:
    """Whether a block of an array has one of the known digests, as far as is known."""
    if None in known:
        return True
    left, shares = math.prod(block.shape), []
    for start, part in _shards(x):
        if (start, part.shape) == (block.start, block.shape):
            return _digest(part) in known
        first = np.maximum(start, block.start)
        end = np.minimum(np.add(start, part.shape), np.add(block.start, block.shape))
        if (first < end).all():
            inside = [*map(slice, first - start, end - start)]
            here = np.asarray(part)[*inside]
            shares.append(of_block(here, tuple(first - block.start), block.shape))
            left -= here.size
    return left > 0 or total(shares) in known  # the rest is in other processes


def _written(x: Any, start: tuple, blocks: Iterable[Block]) -> Any:
    """A block of an array, with all changes that are in it."""
    for block in blocks:
        places, values = _inside(block, start, x.shape)
        is_some = 0 < len(places) < x.size
        if is_some and _is_plain(x):
            # To a power of two, so that few programs are compiled.
            more = (0, (1 << (len(places) - 1).bit_length()) - len(places))
            bits = np.pad(values.view(f"uint{8 * values.itemsize}"), more, "edge")
            x = _scattered(x, np.pad(places, more, "edge"), bits)
        elif len(places):
            new = np.array(x).reshape(-1)
            new[places] = values
            new = new.reshape(x.shape)
            x = jax.device_put(new, x.sharding) if isinstance(x, jax.Array) else new
    return x


def _inside(block: Block, start: tuple, shape: tuple) -> tuple[np.ndarray, np.ndarray]:
    """The changes within another block, with their places there."""
    indices = block.indices
    if indices is None:
        indices = np.arange(len(block.values), dtype=np.int64)
    if (start, shape) == (block.start, block.shape):
        return indices, block.values
    at = np.transpose(np.unravel_index(indices, block.shape))
    at = at + np.subtract(block.start, start)
    is_in = ((at >= 0) & (at < shape)).all(1)
    places = np.ravel_multi_index(tuple(at[is_in].T), shape)
    return np.asarray(places), block.values[is_in]


@jax.jit
def _scattered(x, places, bits):
    new = _bits(x).at[places].set(bits).reshape(x.shape)
    return jax.lax.bitcast_convert_type(new, x.dtype)
