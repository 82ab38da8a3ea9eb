"""What changed in an array, in blocks; and files of deltas, for `safetensors`.

The header describes all arrays and blocks, with a checksum of each stored array, and is
sealed as a manifest is; the arrays hold bits, and so any dtype.
"""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .disk import local_file, safetensors, write_file
from .manifest import BLAKE, seal_of


class Block(NamedTuple):
    """What changed in a block of an array, which is a shard or the whole.

    start: index of the first element of the block in the array.
    shape: shape of the block.
    indices: int32 or int64, (n,): which of its elements changed, counted row by row;
        `None` if all elements are given.
    values: their new values, (n,), in the dtype of the array.
    old, new: digests of the block before and after; not compared if `None`.
    """

    start: tuple[int, ...]
    shape: tuple[int, ...]
    indices: np.ndarray | None
    values: np.ndarray
    old: int | None = None
    new: int | None = None


class Changed(NamedTuple):
    """An array that changed.

    shape, dtype: those of the array.
    blocks: the blocks with changes that this process holds.
    """

    shape: tuple[int, ...]
    dtype: Any
    blocks: tuple[Block, ...]


def require_sound(name: str, changed: Changed) -> None:
    """Raise unless blocks are within the array, and indices and values within them."""
    if not all(_is_sound(block, changed) for block in changed.blocks):
        raise ValueError(
            f"`changes` are damaged: a block of `{name}` is not within its array of "
            f"shape {changed.shape}, or its indices and values are not within the block"
        )


def _is_sound(block: Block, changed: Changed) -> bool:
    rows = [*zip(block.start, block.shape, changed.shape, strict=False)]
    if {len(block.start), len(block.shape), len(changed.shape)} != {len(rows)}:
        return False
    if not all(
        type(x) is int and x >= 0 for i, n, m in rows for x in (i, n, m - i - n)
    ):
        return False
    size, at, values = math.prod(block.shape), block.indices, block.values
    if not isinstance(values, np.ndarray) or values.dtype != changed.dtype:
        return False
    if at is None:
        return values.shape == (size,)
    if not isinstance(at, np.ndarray) or at.dtype.kind != "i" or not at.size:
        return False
    is_inside = at.shape == values.shape == (len(at),) and 0 <= at[0] <= at[-1] < size
    return is_inside and bool((at[1:] > at[:-1]).all())


SCHEMA = 1  # readers reject higher ones
KEY = "stepax.delta"


def write(file: Any, changes: Mapping[str, Changed]) -> None:
    named, arrays = {}, {}
    for i, (name, x) in enumerate(changes.items()):
        require_sound(name, x)
        blocks = [_stored(f"{i}|{j}", block, named) for j, block in enumerate(x.blocks)]
        arrays[name] = {"shape": x.shape, "dtype": x.dtype.name, "blocks": blocks}
    process = [jax.process_index(), jax.process_count()]
    body: dict[str, Any] = {"schema": SCHEMA, "process": process, "arrays": arrays}
    body["sums"] = {key: _sum(x) for key, x in named.items()}
    body["seal"] = seal_of(body)
    metadata = {"format": "np", KEY: json.dumps(body)}
    write_file(file, named, metadata, lambda new, file: _put(new, file, process))


def _stored(key: str, block: Block, named: dict[str, np.ndarray]) -> dict[str, Any]:
    """The description of a block, whose arrays are added to `named`, as bytes."""
    at = block.indices
    named[f"{key}|values"] = _bytes(block.values)
    if at is not None:
        named[f"{key}|indices"] = _bytes(at)
    kind = None if at is None else at.dtype.name
    return {**block._asdict(), "values": key, "indices": kind}


def _bytes(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).reshape(-1).view(np.uint8)


def _sum(x: np.ndarray) -> str:
    return BLAKE(x.data).hexdigest()


def _put(new: Path, file: Path, process: list[int]) -> None:
    """Rename a file, but not onto that of another process of the run."""
    if process[1] > 1:
        try:
            os.link(new, file)  # in which only one of several succeeds
            return
        except FileExistsError:
            other = _process_of(file)
            if other not in (None, process):
                raise ValueError(
                    f"process {other[0]} wrote it; each process needs a file of its own"
                ) from None
        except OSError:  # this file system has no links
            pass
    new.replace(file)


def _process_of(file: Path) -> Any:
    try:
        return _opened(file)[0]["process"]
    except Exception:  # it is no delta, or a damaged one
        return None


def read(file: Any) -> dict[str, Changed]:
    """The changes in a file; raises a `ValueError` that names it."""
    path = local_file(file)
    try:
        body, named = _opened(path)
        return {name: _loaded(name, row, named) for name, row in body["arrays"].items()}
    except ImportError:
        raise
    except Exception as error:
        kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
        raise ValueError(
            f"`{path}` cannot be read: {kind}{error}; write it again, with "
            "`Delta.to_safetensors`"
        ) from error


def _loaded(name: str, row: dict[str, Any], named: dict[str, np.ndarray]) -> Changed:
    shape, dtype, blocks = tuple(row["shape"]), jnp.dtype(row["dtype"]), []
    for x in row["blocks"]:
        values, at = named[f"{x['values']}|values"].view(dtype), None
        if x["indices"] is not None:
            at = named[f"{x['values']}|indices"].view(x["indices"])
        places = tuple(x["start"]), tuple(x["shape"])
        blocks.append(Block(*places, at, values, x["old"], x["new"]))
    found = Changed(shape, dtype, tuple(blocks))
    require_sound(name, found)
    return found


def _opened(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The description in a file, and its arrays, of which each is as it was written."""
    if not os.path.isfile(path):  # for a pipe it would wait
        raise ValueError("there is no such file")
    with safetensors().safe_open(path, "np") as opened:
        named = {key: _bytes(opened.get_tensor(key)) for key in opened.keys()}
        text = (opened.metadata() or {}).get(KEY)
    if text is None:
        raise ValueError("it is no delta, or of a version before the first release")
    body = json.loads(text)
    if body["schema"] > SCHEMA:
        raise ValueError(f"its schema is {body['schema']}; at most {SCHEMA} is known")
    if body.pop("seal") != seal_of(body):
        raise ValueError("its header does not match its checksum")
    for key, expected in body["sums"].items():
        if _sum(named[key]) != expected:
            name = [*body["arrays"]][int(key.partition("|")[0])]
            raise ValueError(f"`{name}` does not have the values that were written")
    return body, named
