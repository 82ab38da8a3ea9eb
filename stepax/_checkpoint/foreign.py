"""Checkpoints of Optax users: a tree in memory, or an Orbax directory."""

from collections.abc import Mapping
from os import PathLike
from typing import Any

import jax
import numpy as np

from .._engine.base import ArrayTree
from .._engine.trees.errors import describe
from .._engine.trees.pack import unpack
from .assemble import Held
from .disk import odd_files, orbax, place
from .steps import numbered


def held(source: Any, step: int | None, keys: tuple[str, str]) -> tuple[Held, int]:
    """The arrays of a tree or directory, and their step; see `keys` of `from_optax`."""
    if isinstance(source, str | PathLike):
        tree, number = _directory(place(source), step)
        what = f"the checkpoint in `{source}`"
    else:
        tree, number, what = source, None, "the given state"
    tree = unpack(tree)
    is_whole = _item(tree, keys[1], tree) is not tree
    if not is_whole and isinstance(source, str | PathLike):
        is_dict = isinstance(tree, Mapping)
        known = sorted(map(str, tree)) if is_dict else describe(tree)
        raise ValueError(
            f"{what} has no `{keys[1]}` but {known}; pass its names as `keys`"
        )
    params, state = (_item(tree, key) for key in keys) if is_whole else (None, tree)
    saved = _item(tree, "step") if is_whole and number is None else number
    return Held.of(what, params, state), 0 if saved is None else int(saved)


def _item(tree: ArrayTree, key: str, other: Any = None) -> Any:
    """An item of a dictionary, or a field of a train state."""
    is_dict = isinstance(tree, Mapping)
    return tree.get(key, other) if is_dict else getattr(tree, key, other)


def _directory(path: Any, step: int | None) -> tuple[Any, int | None]:
    """A checkpoint, or one from a directory of numbered checkpoints."""
    steps = [] if _is_tree(path) else numbered(path)
    known = [x for x in steps if _is_whole(path / str(x))]
    if step is not None and step not in known:
        raise ValueError(f"there is no step {step} in `{path}`, which has {known}")
    number = max(known, default=None) if step is None else step
    path = path if number is None else path / str(number)
    if _is_tree(path / "default"):
        path = path / "default"
    if _is_tree(path):
        return _read(path), number
    items = {x.name: _read(x) for x in sorted(path.glob("*")) if _is_tree(x)}
    if not items:
        raise ValueError(f"there is no checkpoint of Orbax in `{path}`")
    return items, number


def _is_whole(path: Any) -> bool:
    try:
        return orbax().utils.is_checkpoint_finalized(path)
    except (ValueError, OSError):  # another process has just removed it
        return False


def _is_tree(path: Any) -> bool:
    return (path / "_METADATA").exists()


def _read(path: Any) -> Any:
    """The tree, as NumPy arrays."""
    ocp: Any = orbax()
    if odd := odd_files(path):
        raise ValueError(f"`{odd[0]}` is not a regular file; remove it")
    try:
        with ocp.PyTreeCheckpointer() as reader:
            found = reader.metadata(path).item_metadata.tree

            def host(_):
                return ocp.RestoreArgs(restore_type=np.ndarray)

            how = ocp.args.PyTreeRestore(restore_args=jax.tree.map(host, found))
            return reader.restore(path, args=how)
    except Exception as error:
        raise ValueError(f"the checkpoint in `{path}` is damaged: {error}") from error
