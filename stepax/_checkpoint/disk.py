"""Paths, and what is written to a disk so that it outlives a loss of power."""

import os
from collections.abc import Iterable
from typing import Any


def orbax() -> Any:
    try:
        import orbax.checkpoint as ocp
    except ImportError as error:
        raise ImportError(
            'checkpoints need Orbax: `pip install "stepax[checkpoint]"`'
        ) from error
    return ocp


def place(directory: Any) -> Any:
    """A path, of this machine or of a store that Orbax writes to; "~" is home."""
    orbax()
    from etils import epath  # which Orbax brings

    try:
        name = os.fsdecode(directory)
    except TypeError as error:
        raise TypeError(
            f"`directory` is of type `{type(directory).__name__}`, expected a path"
        ) from error
    return epath.Path(os.path.expanduser(name)).absolute()


def is_local(path: Any) -> bool:
    return "://" not in os.fspath(path)


def sync_tree(folder: Any) -> None:
    """Have all below a folder on the disk, names and contents."""
    if not is_local(folder):
        return
    for top, _, names in os.walk(folder, topdown=False):
        sync(os.path.join(top, name) for name in names)
        sync_names(top)


def sync(files: Iterable[Any]) -> None:
    for file in files:
        with open(file, "rb+") as opened:
            os.fsync(opened.fileno())


def sync_names(folder: Any) -> None:
    """Have the names in a folder on the disk, where the system can do that."""
    if os.name == "nt" or not is_local(folder):
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
