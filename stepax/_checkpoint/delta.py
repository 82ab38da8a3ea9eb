"""Which stored bits of a tree changed, to send weights on without the rest.

After a step with a small learning rate, most bfloat16 weights have the bits that they
had: their updates are rounded away.  A trainer can then send a few indices and values
to the programs that sample from the model, which get the same bits as from the whole.

Bits are compared, not numbers: 0.0 and -0.0 differ, and a NaN is equal to itself.
Blocks of floats and integers of up to 32 bits are compared where they are; only what
changed is moved.
"""

import functools as ft
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
from .values import require_known


class Block(NamedTuple):
    """What changed in a block of an array, which is a shard or the whole.

    start: index of the first entry of the block in the array.
    shape: shape of the block.
    indices: int32 or int64, (n,): which of its entries changed, counted row by row;
        `None` if all entries are given.
    values: their new values, (n,), in the dtype of the array.
    """

    start: tuple[int, ...]
    shape: tuple[int, ...]
    indices: np.ndarray | None
    values: np.ndarray


class Changed(NamedTuple):
    """An array that changed.

    shape, dtype: those of the array.
    blocks: the blocks with changes that this process holds.
    """

    shape: tuple[int, ...]
    dtype: Any
    blocks: tuple[Block, ...]


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

        file: path of the file.
        """
        from .disk import write_file

        rows = [row for name, x in self.arrays.items() for row in _stored(name, x)]
        write_file(file, {"": dict(rows)}, "/")

    @classmethod
    def from_safetensors(cls, file: Any) -> "Delta":
        """Read what `to_safetensors` wrote.

        file: path of the file.
        """
        from safetensors.numpy import load_file

        rows: dict[str, dict[int, dict]] = {}
        for key, x in load_file(file).items():
            name, number, field = key.rsplit("|", 2)
            rows.setdefault(name, {}).setdefault(int(number), {})[field] = x
        return cls({name: _loaded(rows[name]) for name in sorted(rows)})


@explain_misuse
def delta(old: ArrayTree, new: ArrayTree, *, most: float | None = None) -> Delta:
    """Which stored bits differ between two trees of arrays, for `apply_delta`.

    old, new: trees of the same structure, shapes and dtypes, such as parameters before
        and after a step; leaves that are not arrays of numbers are left out.  Arrays of
        both that are sharded alike are compared shard by shard; in a run of several
        processes, each gets the changes in its own shards.
    most: largest share of the entries of a block for which indices are given; with
        more, all of its entries are.  By default where that takes fewer bytes.

    Raises a `ValueError` that names the path where structures, shapes or dtypes differ.
    """
    leaves, treedef = jax.tree_util.tree_flatten_with_path(old, is_leaf=is_none)
    try:
        others = treedef.flatten_up_to(new)
    except (ValueError, TypeError):
        raise errors.mismatch("new", new, "`old`", old) from None
    found = {}
    for (path, x), y in zip(leaves, others, strict=True):
        if _is_array(x):
            _require_alike(join(path), x, y, "new")
            require_known(join(path), x)
            require_known(join(path), y)
            if blocks := tuple(filter(None, _differences(x, y, most))):
                found[join(path)] = Changed(x.shape, np.dtype(x.dtype), blocks)
    return Delta(found)


@explain_misuse
def apply_delta(old: ArrayTree, changes: Delta) -> ArrayTree:
    """The tree that `delta` was given as `new`, with the same bits.

    old: the tree that it was given as `old`, in any sharding whose shards are within
        the blocks of the changes; arrays of NumPy remain NumPy's, and none is modified.
    changes: the result of `delta`.

    Raises a `ValueError` that names the path for an array that is missing, or of
    another shape or dtype.
    """
    leaves, treedef = jax.tree_util.tree_flatten_with_path(old, is_leaf=is_none)
    named = [(join(path), x) for path, x in leaves]
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
        return Block(start, b.shape, None, np.asarray(b).reshape(-1))
    if is_here:
        places = np.flatnonzero(mask)
        return Block(start, b.shape, places.astype(index), b.reshape(-1)[places])
    # To a power of two, so that few programs are compiled.
    found = _taken(b, mask, 1 << (number - 1).bit_length())
    places, bits = (np.asarray(x)[:number] for x in found)
    return Block(start, b.shape, places.astype(index), bits.view(b.dtype))


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
    if isinstance(x, np.ndarray):
        return _written(x, (0,) * x.ndim, changed.blocks)
    parts = [
        _written(shard.data, _first(shard), changed.blocks)
        for shard in x.addressable_shards
    ]
    return jax.make_array_from_single_device_arrays(x.shape, x.sharding, parts)


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


# --- files ----------------------------------------------------------------------------


def _stored(name: str, changed: Changed) -> Iterator[tuple[str, np.ndarray]]:
    """The arrays of a file; those of bytes hold any dtype."""
    kind = np.frombuffer(changed.dtype.name.encode(), np.uint8)
    for i, block in enumerate(changed.blocks):
        at = np.array([changed.shape, block.start, block.shape], np.int64)
        found = {"at": at, "dtype": kind}
        found["values"] = _bytes(block.values)
        if block.indices is not None:
            found["indices"] = block.indices
        for field, x in found.items():
            yield f"{name}|{i}|{field}", x


def _loaded(rows: Mapping[int, Mapping[str, np.ndarray]]) -> Changed:
    blocks, shape, dtype = [], (), np.dtype(bool)
    for i in sorted(rows):
        row = rows[i]
        shape, start, size = (tuple(map(int, x)) for x in row["at"])
        dtype = jnp.dtype(row["dtype"].tobytes().decode())
        values = np.ascontiguousarray(row["values"]).reshape(-1).view(dtype)
        blocks.append(Block(start, size, row.get("indices"), values))
    return Changed(shape, dtype, tuple(blocks))
