"""Reading the arrays that Orbax wrote, with TensorStore, into memory that JAX adopts.

An array is read block by block, as it was written, and only a few blocks are in memory
beside the result.  The result is aligned so that XLA uses it on a CPU without a copy.
What a file declares is compared with the manifest before memory is allocated for it.
"""

import itertools
import math
from collections import deque
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from . import Entry
from .digest import of_block, total
from .disk import Location, is_local
from .manifest import Damage
from .values import of_bytes, stored_as


BLOCK = 2**22  # bytes of a block in a file, at most
LIMIT = 4 * BLOCK  # bytes of blocks that are being read
ALIGNMENT = 64  # bytes; less, and JAX copies
MANY = 256  # arrays that are opened at once


def read(
    folder: Location, wanted: list[tuple[Entry, Any]]
) -> Iterator[tuple[Any, int]]:
    """The stored arrays of some entries, in order, with their digests.

    wanted: each entry with the sharding to read it to, or `None` for one of NumPy.  Of
        what several processes hold, the digest is the part that this process adds.
    """
    import tensorstore as ts

    context = ts.Context({"cache_pool#ocdbt": {"total_bytes_limit": 10**8}})
    rows, queue = iter(wanted), _Queue()
    while some := [*itertools.islice(rows, MANY)]:
        opened = [_open(folder, entry, context) for entry, _ in some]
        started = deque()
        for (entry, sharding), store in zip(some, opened, strict=True):
            found = _checked(entry, store.result())
            started.append(_Reading(entry, found, sharding, queue))
            while started and started[0].is_done:  # while others are being read
                yield started.popleft().result()
        yield from (x.result() for x in started)


def _open(folder: Location, entry: Entry, context: Any) -> Any:
    import tensorstore as ts

    path = f"{folder}/"
    files = {"driver": "file", "path": path} if is_local(folder) else path
    names = {"driver": "ocdbt", "base": files, "path": f"{entry.key}/"}
    spec = {
        "driver": "zarr",
        "kvstore": names | {"cache_pool": "cache_pool#ocdbt"},
        "recheck_cached_data": False,
        "recheck_cached_metadata": False,
        "fill_missing_data_reads": False,
    }
    return ts.open(spec, open=True, read=True, context=context)


def _checked(entry: Entry, store: Any) -> Any:
    found, saved = (tuple(store.shape), store.dtype.numpy_dtype), stored_as(entry)
    block = store.chunk_layout.read_chunk.shape or ()
    if found != saved or math.prod(block) > max(1, math.prod(store.shape)):
        raise Damage(
            f"`{entry.key}` is stored as {found[1]} of shape {found[0]} in blocks of "
            f"{block}, but was saved as {saved[1]} of shape {saved[0]}"
        )
    return store


class _Queue:
    """Reads that may not be done; it waits for the oldest before it starts too many."""

    def __init__(self):
        self.bytes, self.reads = 0, deque()

    def start(self, source: Any, into: np.ndarray) -> Any:
        import tensorstore as ts

        while self.reads and self.bytes + into.nbytes > LIMIT:
            size, future = self.reads.popleft()
            future.result()
            self.bytes -= size
        future = ts.array(into, copy=False).write(source[ts.d[:].translate_to[0]])
        self.bytes += into.nbytes
        self.reads.append((into.nbytes, future))
        return future


class _Reading:
    """An array that is being read: the blocks that the devices here hold, or all."""

    def __init__(self, entry: Entry, store: Any, sharding: Any, queue: _Queue):
        self.entry, self.shape, self.sharding = entry, tuple(store.shape), sharding
        whole = tuple(slice(0, n) for n in self.shape)
        self.where: dict[Any, tuple] = {None: whole}
        if sharding is not None:
            self.where = sharding.addressable_devices_indices_map(self.shape)
        self.blocks: dict[tuple, np.ndarray] = {}
        self.futures = []
        for index in self.where.values():
            key = self._key(index)
            if key in self.blocks:
                continue
            shape = tuple(stop - start for start, stop in key)
            self.blocks[key] = out = aligned(shape, store.dtype.numpy_dtype)
            for cell in _cells(key, store.chunk_layout.read_chunk.shape or ()):
                rows = zip(cell, key, strict=True)
                here = [slice(i - k, j - k) for (i, j), (k, _) in rows]
                source = store[tuple(itertools.starmap(slice, cell))]
                # The ellipsis makes it an array even where there are no axes.
                self.futures.append(queue.start(source, out[*here, ...]))

    def _key(self, index: tuple) -> tuple:
        rows = zip(index, self.shape, strict=True)
        return tuple(x.indices(n)[:2] for x, n in rows)

    @property
    def is_done(self) -> bool:
        return all(x.done() for x in self.futures)

    def result(self) -> tuple[Any, int]:
        for x in self.futures:
            x.result()
        return self._array(), self._digest()

    def _digest(self) -> int:
        """The digest, of what several processes hold by the first of them."""
        owners = dict.fromkeys(self.blocks, here := jax.process_index())
        if self.sharding is not None:
            everywhere = self.sharding.devices_indices_map(self.shape)
            for device, index in reversed(everywhere.items()):
                owners[self._key(index)] = device.process_index
        return total(
            of_block(of_bytes(x, self.entry.dtype), [i for i, _ in key], self.shape)
            for key, x in self.blocks.items()
            if owners[key] == here
        )

    def _array(self) -> Any:
        if self.sharding is None:
            return self.blocks[self._key(self.where[None])]
        kind, parts = self.sharding.memory_kind, []
        for device, index in self.where.items():
            place = SingleDeviceSharding(device, memory_kind=kind)
            parts.append(jax.device_put(self.blocks[self._key(index)], place))
        make = jax.make_array_from_single_device_arrays
        return make(self.shape, self.sharding, parts)


def _cells(block: tuple, size: tuple) -> Iterator[tuple]:
    """A block of an array, cut where the blocks in its file are."""
    axes = []
    for (start, stop), n in zip(block, size, strict=True):
        cuts = [start, *range((start // n + 1) * n, stop, n), stop]
        axes.append([*itertools.pairwise(cuts)])
    return itertools.product(*axes)


def aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array without values, in memory that JAX uses without a copy."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)
