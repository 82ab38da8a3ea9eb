"""Writing parameters and states to a `safetensors` file."""

import os
import uuid
from pathlib import Path
from typing import Any

import jax
import numpy as np

from .._engine.trees.errors import list_some
from .._engine.trees.pack import unpack
from .._names import install
from .disk import sync, sync_names
from .entries import arrays_of
from .values import storable


def write(file: Any, parts: dict[str, Any], separator: str) -> None:
    """Write trees to one file, each array named by its path.

    parts: trees by the prefix of their names.
    """
    try:
        from safetensors.numpy import save_file
    except ImportError as error:
        raise ImportError(
            f"this needs `safetensors`: {install('checkpoint')}"
        ) from error
    rows = [
        row for start, tree in parts.items() for row in _rows(start, tree, separator)
    ]
    named = dict(rows)
    if len(named) < len(rows):
        names = [name for name, _ in rows]
        twice = sorted({f"`{x}`" for x in names if names.count(x) > 1})
        raise ValueError(f"several arrays would have the name {list_some(twice)}")
    if jax.process_index() > 0:
        return
    # Renamed to its final name once it is complete and on disk.
    file = Path(os.fsdecode(file)).expanduser()
    new = file.with_name(f"{file.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}.new")
    try:
        save_file(named, new, metadata={"format": "np"})
        sync([new])
        new.replace(file)
        sync_names(file.parent)
    except Exception as error:
        kinds = list_some(sorted({str(x.dtype) for x in named.values()}))
        raise ValueError(
            f"`{file}` cannot be written: {error}; dtypes: {kinds}"
        ) from error
    finally:
        new.unlink(missing_ok=True)


def _rows(start: str, tree: Any, separator: str) -> list[tuple[str, np.ndarray]]:
    first = [start] if start else []
    join = lambda x: separator.join([*first, *x.names])
    return [(join(x), _whole(x, a)) for x, a in arrays_of(unpack(tree))]


def _whole(entry: Any, x: Any) -> np.ndarray:
    x = storable(entry.key, x)
    if isinstance(x, jax.Array) and not (
        x.is_fully_addressable or x.is_fully_replicated
    ):
        raise ValueError(
            f"{entry} is sharded over several processes: replicate it first, "
            "with `jax.jit(lambda x: x, out_shardings=...)`"
        )
    return np.asarray(x, order="C")
