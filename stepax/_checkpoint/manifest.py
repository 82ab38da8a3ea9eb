"""The manifest of a step: names, shapes, dtypes, digests, and a checksum of each file.

The manifest is written last, so that only complete steps have one.
"""

import functools as ft
import hashlib
import json
import re
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from . import Entry
from .disk import Location


SCHEMA = 2  # readers reject higher ones; 1 has checksums of all files, see `digest`
FILE = ("manifest", "metadata")


class Manifest(NamedTuple):
    """The description of one step.

    step: the number of the step.
    schema: if above `SCHEMA`, from a later version of Stepax; no other field is read.
    parts: entries by the names of the trees, "params" and "state".
    files: a dict from names to size and checksum, "" for a large file, whose arrays
        have digests; `None` in checkpoints of Stepax 0.1.
    """

    step: int
    schema: int
    parts: Mapping[str, list[Entry]]
    files: Mapping[str, tuple[int, str]] | None


class Damage(ValueError):
    """Why a step is not complete."""


def write(folder: Location, step: int, parts: Mapping[str, list[Entry]]) -> None:
    """Add the manifest to a folder, and flush all of it to disk."""

    def described(file):
        size = file.stat().length
        return size, _sum(file) if size <= LARGE else ""

    files = sorted(_files(folder))
    with ThreadPoolExecutor() as pool:
        rows = [*pool.map(described, files)]
    names = [x.relative_to(folder).as_posix() for x in files]
    body: dict[str, Any] = {"schema": SCHEMA, "step": step}
    body |= {name: [x._asdict() for x in found] for name, found in parts.items()}
    body["files"] = dict(zip(names, rows, strict=True))
    body = json.loads(json.dumps(body))
    body["seal"] = _seal(body)
    path = folder.joinpath(*FILE)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"checksum": _checksum(body), **body}))


LARGE = 2**20  # bytes; larger files hold only arrays


def _files(folder: Location) -> list[Location]:
    found = [*folder.iterdir()]
    return [y for x in found for y in (_files(x) if x.is_dir() else [x])]


_BLAKE = ft.partial(hashlib.blake2b, digest_size=32)


def _sum(file: Any) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, _BLAKE).hexdigest()


def _seal(body: dict) -> str:
    return _BLAKE(_text(body)).hexdigest()


def _checksum(body: dict) -> int:
    """The checksum that versions before `seal` read."""
    return zlib.crc32(_text(body))


def _text(body: dict) -> bytes:
    return json.dumps(body, sort_keys=True).encode()


def read(folder: Location, step: int) -> Manifest:
    """The manifest of a step, if all files that it lists exist.

    Raises `Damage` if the manifest is missing, damaged or belongs to another step, and
    for missing files.
    """
    try:
        found = _open(folder.joinpath(*FILE))
        if found.schema > SCHEMA:
            return found
        if found.step != step:
            raise Damage(
                f"it holds step {found.step}: it was renamed or copied; rename it to "
                f"{found.step}"
            )
        _check_files(folder, found)
    except OSError as error:
        raise Damage(f"{type(error).__name__}: {error}") from error
    return found


def _open(path: Location) -> Manifest:
    if not path.exists():
        raise Damage(
            "it has no manifest of Stepax: files are missing, or another program "
            "wrote it; `from_optax` reads checkpoints of Optax"
        )
    try:
        body = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise Damage(f"the manifest is not JSON: {error}") from error
    if not isinstance(body, dict) or body.pop("checksum", None) != _checksum(body):
        raise Damage("the manifest does not match its checksum")
    schema: Any = body.get("schema")
    if _is_count(schema) and schema > SCHEMA:
        return Manifest(-1, schema, {}, None)
    seal = body.pop("seal", None)
    if ("files" in body) != (seal is not None) or seal not in (None, _seal(body)):
        raise Damage("the manifest does not match its checksum")
    return _of_json(body)


def _of_json(body: dict[str, Any]) -> Manifest:
    """Parse a manifest; any field may be missing or wrong if it has been edited."""
    step: Any = body.get("step")
    schema: Any = body.get("schema")
    files = body.get("files")
    if not _is_count(step) or not _is_count(schema) or schema == 0:
        raise Damage("the manifest has no step, or no schema")
    parts = {key: _entries(key, body.get(key)) for key in ("params", "state")}
    if files is not None:
        if not isinstance(files, dict) or not all(map(_is_file, files.items())):
            raise Damage("the manifest has no list of files")
        files = {name: tuple(row) for name, row in files.items()}
    return Manifest(step, schema, parts, files)


def _is_count(x: Any) -> bool:
    return isinstance(x, int) and not isinstance(x, bool) and x >= 0


def _is_file(item: tuple) -> bool:
    name, row = item
    if not isinstance(row, list) or len(row) != 2 or ".." in name.split("/"):
        return False
    return _is_count(row[0]) and isinstance(row[1], str) and not name.startswith("/")


def _entries(part: str, rows: Any) -> list[Entry]:
    try:
        found = [_entry(x) for x in rows]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Damage(
            f"the manifest has no list of arrays as `{part}` "
            f"({type(error).__name__}: {error})"
        ) from error
    if len({x.key for x in found}) < len(found):
        raise Damage(f"the manifest names an array of `{part}` twice")
    return found


def _entry(fields: Mapping[str, Any]) -> Entry:
    names, where, own = (_strings(fields[k]) for k in ("names", "where", "own"))
    owner, dtype = _strings([fields["owner"], fields["dtype"]])
    shape, digest, kind = fields["shape"], fields["digest"], fields.get("kind", "")
    if not isinstance(shape, list) or not all(map(_is_count, shape)):
        raise ValueError(f"the shape {shape!r}")
    if digest is not None and not _is_count(digest):
        raise ValueError(f"the digest {digest!r}")
    if kind not in ("", "numpy", "scalar", "python"):
        raise ValueError(f"the kind {kind!r}")
    found = Entry(names, where, owner, own, tuple(shape), dtype, digest, kind)
    # Raises for what is no kind of keys, or no dtype.
    jax.random.key(0, impl=found.key_kind) if found.key_kind else jnp.dtype(dtype)
    return found


def _strings(names: Any) -> tuple[str, ...]:
    if not isinstance(names, list) or not all(isinstance(x, str) for x in names):
        raise TypeError(f"expected names, not {names!r}")
    return tuple(names)


def _check_files(folder: Location, manifest: Manifest) -> None:
    for name in manifest.files or ():
        if not (folder / name).exists():
            raise Damage(f"the file `{name}` is missing")
    # Checkpoints of Stepax 0.1 do not list their files.
    for part, found in manifest.parts.items() if manifest.files is None else ():
        is_there = (folder / part / "manifest.ocdbt").exists()
        if not is_there and any(0 not in x.shape for x in found):
            raise Damage(f"the files of `{part}` are missing")


def verify(folder: Location, manifest: Manifest, i: int, n: int) -> None:
    """Compare each file with its checksum; process `i` of `n` checks its share.

    Raises `Damage` for a file that differs.
    """
    files = manifest.files or {}
    names = _share(sorted(files), i, n)
    for name in names:
        if (size := (folder / name).stat().length) != files[name][0]:
            raise Damage(f"the file `{name}` has {size} bytes, not {files[name][0]}")
    summed = [name for name in names if files[name][1]]
    with ThreadPoolExecutor() as pool:
        sums = [*pool.map(lambda name: _sum(folder / name), summed)]
    for name, found in zip(summed, sums, strict=True):
        if found != files[name][1]:
            raise Damage(f"the file `{name}` does not have the values that were saved")


def _share(names: list[str], i: int, n: int) -> list[str]:
    """Which files a process checks: those it wrote, if several processes wrote."""
    writers = [re.search(r"/ocdbt\.process_(\d+)/", name) for name in names]
    is_shared = len({x[1] for x in writers if x}) > 1
    owners = [int(x[1]) if x and is_shared else k for k, x in enumerate(writers)]
    return [name for name, k in zip(names, owners, strict=True) if k % n == i]
