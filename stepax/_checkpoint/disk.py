"""Paths, and durable writes that survive a power failure."""

import os
from collections.abc import Iterable
from typing import Any

from .._names import install


def orbax() -> Any:
    try:
        import orbax.checkpoint as ocp
    except ImportError as error:
        raise ImportError(f"checkpoints need Orbax: {install('checkpoint')}") from error
    return ocp


def place(directory: Any) -> Any:
    """A path on this machine or in a store that Orbax supports; expands "~"."""
    orbax()
    from etils import epath  # a dependency of Orbax

    try:
        name = os.fsdecode(directory)
    except TypeError as error:
        raise TypeError(
            f"`directory` is of type `{type(directory).__name__}`, expected a path"
        ) from error
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


def is_local(path: Any) -> bool:
    return "://" not in os.fspath(path)


def is_there(path: Any) -> bool:
    """Whether a path exists, even as a broken link."""
    return os.path.lexists(path) if is_local(path) else path.exists()


def sync_tree(folder: Any) -> None:
    """Flush everything below a folder to disk, names and contents."""
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
    """Flush the names in a folder to disk, if the system supports it."""
    if os.name == "nt" or not is_local(folder):
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
