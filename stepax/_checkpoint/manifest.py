"""The manifest of a step: names, shapes, dtypes, digests, and a checksum of each file.

The manifest is written last, so that only complete steps have one.
"""

import functools as ft
import hashlib
import json
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from . import Entry
from .disk import Location, odd_files
from .values import stored_as


SCHEMA = 2  # readers reject higher ones
FILE = ("manifest", "metadata")


class Manifest(NamedTuple):
    """The description of one step.

    step: the number of the step.
    schema: if above `SCHEMA`, from a later version of Stepax; no other field is read.
    parts: entries by the names of the trees, "params" and "state".
    files: a dict from names to size and checksum, "" for a large file, whose arrays
        have digests.
    recipe: the transformation as `to_config` writes it, if it was given.
    """

    step: int
    schema: int
    parts: Mapping[str, list[Entry]]
    files: Mapping[str, tuple[int, str]]
    recipe: Any = None


class Damage(ValueError):
    """Why a step is not complete."""


def write(
    folder: Location, step: int, parts: Mapping[str, list[Entry]], recipe: Any = None
) -> None:
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
    body |= {} if recipe is None else {"recipe": recipe}
    body["seal"] = seal_of(body)
    path = folder.joinpath(*FILE)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(body))


LARGE = 2**20  # bytes; larger files hold only arrays


def _files(folder: Location) -> list[Location]:
    found = [*folder.iterdir()]
    return [y for x in found for y in (_files(x) if x.is_dir() else [x])]


BLAKE = ft.partial(hashlib.blake2b, digest_size=32)


def _sum(file: Any) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, BLAKE).hexdigest()


def seal_of(body: dict) -> str:
    return BLAKE(json.dumps(body, sort_keys=True).encode()).hexdigest()


def read(folder: Location, step: int) -> Manifest:
    """The manifest of a step; raises `Damage` unless it and all of its files exist."""
    try:
        if odd := odd_files(folder):
            raise Damage(f"`{odd[0]}` is not a regular file; remove it")
        found = _open(folder.joinpath(*FILE))
        if found.schema > SCHEMA:
            return found
        if found.step != step:
            raise Damage(
                f"it holds step {found.step}: it was renamed or copied; rename it to "
                f"{found.step}"
            )
        for name in found.files:
            is_inside = {"", ".."}.isdisjoint(name.split("/"))
            if not (is_inside and (folder / name).exists()):
                raise Damage(f"the file `{name}` is missing from its folder")
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
        if (schema := body["schema"]) > SCHEMA:
            return Manifest(-1, schema, {}, {})
        body.pop("checksum", None)  # a second one, of versions before the first release
        if body.pop("seal") != seal_of(body):
            raise Damage("the manifest does not match its checksum")
        parts = {key: [_entry(x) for x in body[key]] for key in ("params", "state")}
        files = {name: (size, seal) for name, (size, seal) in body["files"].items()}
        return Manifest(body["step"], schema, parts, files, body.get("recipe"))
    except Damage:
        raise
    except Exception as error:  # whatever somebody has written there
        raise Damage(
            f"the manifest cannot be read ({type(error).__name__}: {error})"
        ) from error


def _entry(fields: Mapping[str, Any]) -> Entry:
    given: Any = {k: tuple(x) if isinstance(x, list) else x for k, x in fields.items()}
    entry = Entry(**given)
    paths, texts = (entry.names, entry.where, entry.own), (entry.owner, entry.dtype)
    numbers = *entry.shape, entry.digest
    if not (
        all(type(path) is tuple for path in paths)
        and all(type(x) is str for x in (*texts, entry.kind, *sum(paths, ())))
        and all(type(x) is int and x >= 0 for x in numbers)
    ):
        raise Damage(f"the manifest describes an array as {fields}")
    stored_as(entry)  # raises for a dtype that is not known
    return entry


def verify(folder: Location, manifest: Manifest, i: int, n: int) -> None:
    """Compare each file with its checksum; process `i` of `n` checks its share."""
    files = manifest.files
    names = _share(sorted(files), i, n)
    for name in names:
        if (size := (folder / name).stat().length) != files[name][0]:
            raise Damage(f"the file `{name}` has {size} bytes, not {files[name][0]}")
    summed = [name for name in names if files[name][1] and files[name][0] <= LARGE]
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
