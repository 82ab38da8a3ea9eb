"""Paths, and durable writes that survive a power failure, as of a plain file."""

import importlib
import os
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import numpy as np

from .._engine.trees.errors import list_some
from .._names import install
from . import arrays_of
from .values import storable


if TYPE_CHECKING:
    from etils import epath

# What users give, and a path on this machine or in a store.
Directory: TypeAlias = str | os.PathLike[str]
Location: TypeAlias = "epath.Path"


def _needed(module: str, what: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{what}: {install('checkpoint')}") from error


def orbax() -> Any:
    return _needed("orbax.checkpoint", "checkpoints need Orbax")


def safetensors(module: str = "safetensors") -> Any:
    return _needed(module, "this needs `safetensors`")


def place(directory: Directory) -> Location:
    """A path on this machine or in a store that Orbax supports; expands "~"."""
    orbax()
    from etils import epath  # a dependency of Orbax

    name = _path("directory", directory)
    require_unicode("`directory`", name)
    return epath.Path(os.path.expanduser(name)).absolute()


def require_unicode(what: str, name: str) -> None:
    """Raise for a name that is not valid UTF-8, which Orbax cannot write."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"{what}, {name!a}, has a lone surrogate and cannot be written as UTF-8: "
            "give another name"
        ) from None


def is_local(path: Directory) -> bool:
    return "://" not in os.fspath(path)


def is_there(path: Location) -> bool:
    """Whether a path exists, even as a broken link."""
    return os.path.lexists(path) if is_local(path) else path.exists()


def odd_files(folder: Location) -> list[str]:
    """What is below a folder that is no file, such as a pipe, which has no end."""
    if not is_local(folder):
        return []
    return [
        os.path.join(top, x)
        for top, folders, files in os.walk(folder)
        for x in [*files, *filter(lambda x: os.path.islink(f"{top}/{x}"), folders)]
        if not os.path.isfile(os.path.join(top, x))
    ]


def sync_tree(folder: Location) -> None:
    """Flush everything below a folder to disk, names and contents."""
    if not is_local(folder):
        return
    for top, _, names in os.walk(folder, topdown=False):
        sync(os.path.join(top, name) for name in names)
        sync_names(top)


def sync(files: Iterable[Directory]) -> None:
    for file in files:
        with open(file, "rb+") as opened:
            os.fsync(opened.fileno())


def sync_names(folder: Directory) -> None:
    """Flush the names in a folder to disk, if the system supports it."""
    if os.name == "nt" or not is_local(folder):
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def write_trees(file: Any, parts: dict[str, Any], separator: str) -> None:
    """Write trees, by the start of their names, to one file of named arrays."""
    rows = [
        (separator.join([*filter(None, [start]), *x.names]), _whole(x, a))
        for start, tree in parts.items()
        for x, a in arrays_of(tree)
    ]
    named = dict(rows)
    if "__metadata__" in named:
        raise ValueError(
            "an array is named `__metadata__`, which `safetensors` reserves; rename it"
        )
    if len(named) < len(rows):
        names = [name for name, _ in rows]
        twice = sorted({f"`{x}`" for x in names if names.count(x) > 1})
        raise ValueError(f"several arrays would have the name {list_some(twice)}")
    if jax.process_index() == 0:
        write_file(file, named, {"format": "np"}, lambda new, file: new.replace(file))


def write_file(
    file: Any,
    named: dict[str, np.ndarray],
    metadata: dict[str, str],
    put: Callable[[Path, Path], Any],
) -> None:
    """Write arrays to a file, which `put` renames once it is complete and on disk."""
    file = local_file(file)
    new = file.with_name(f"{file.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}.new")
    try:
        safetensors("safetensors.numpy").save_file(named, new, metadata=metadata)
        sync([new])
        put(new, file)
        sync_names(file.parent)
    except ImportError:
        raise
    except Exception as error:
        kinds = list_some(sorted({str(x.dtype) for x in named.values()}))
        raise ValueError(
            f"`{file}` cannot be written: {error}; dtypes: {kinds}"
        ) from error
    finally:
        new.unlink(missing_ok=True)


def local_file(file: Any) -> Path:
    return Path(_path("file", file)).expanduser()


def _path(name: str, x: Any) -> str:
    try:
        return os.fsdecode(x)
    except TypeError as error:
        kind = type(x).__name__
        raise TypeError(f"`{name}` is of type `{kind}`, expected a path") from error


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
