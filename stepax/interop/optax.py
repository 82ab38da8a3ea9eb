"""Stepax alongside Optax, or in its place for libraries that cannot be edited.

`python -m stepax.interop.optax script.py` runs a program in which `import optax`
imports Stepax, including in every library it uses.  `install`, `uninstall` and
`installed` do the same within a program.  `to_stepax` and `to_optax` convert states:
classes are matched by name, and must have the same fields; values are unchanged.
"""

import importlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax

from .. import contrib, experimental  # noqa: F401  (they register their states)
from .._engine.base import COMPATIBLE, ArrayTree, OptState
from .._engine.trees import errors
from .._names import attributes
from ._switch import Alias, install, installed, main, uninstall


__all__ = ["install", "installed", "main", "to_optax", "to_stepax", "uninstall"]

if not TYPE_CHECKING:
    __dir__, __getattr__ = attributes(__name__)


def to_stepax(state: OptState) -> OptState:
    """Convert a state of Optax to the state of Stepax with the same values.

    state: a tree that contains states of Optax, such as a state, or a train state.

    Raises a `ValueError` for a class that Stepax does not have, or has with other
    fields.
    """
    return _convert(state, _is_theirs, COMPATIBLE.get, "Stepax")


def to_optax(state: OptState) -> OptState:
    """Convert a state of Stepax to the state of Optax with the same values.

    state: a tree that contains states of Stepax, such as a state, or a train state.

    Raises an `ImportError` if Optax is not installed, or Stepax replaces it, and a
    `ValueError` for a class that Optax does not have, or has with other fields.
    """
    try:
        optax = importlib.import_module("optax")
    except ImportError as error:
        raise ImportError("states for Optax need Optax installed") from error
    if isinstance(optax, Alias):
        raise ImportError("Stepax replaces Optax here; `uninstall` it first")
    errors.refuse_transformation("to_optax", state)
    return _convert(state, _is_ours, _class_of_optax, "Optax")


def _convert(
    tree: ArrayTree, is_foreign: Callable, find: Callable, to: str
) -> ArrayTree:
    below, treedef = jax.tree.flatten(tree, is_leaf=lambda x: x is not tree)
    if len(below) == 1 and below[0] is tree:
        return tree  # a leaf
    children = [_convert(x, is_foreign, find, to) for x in below]
    if not is_foreign(tree):
        return treedef.unflatten(children)
    kind = type(tree)
    found = find(kind.__name__)
    if found is None:
        raise ValueError(f"{to} has no class `{kind.__name__}`")
    if found._fields != kind._fields:
        raise ValueError(
            f"`{kind.__name__}` has the fields {kind._fields}, but that of {to} has "
            f"{found._fields}; is it from another version?"
        )
    return found(*children)


def _is_theirs(x: object) -> bool:
    home = type(x).__module__.partition(".")[0]
    return home == "optax" and isinstance(x, tuple)


def _is_ours(x: object) -> bool:
    return COMPATIBLE.get(type(x).__name__) is type(x)


def _class_of_optax(name: str) -> type | None:
    """Optax's class, wherever Optax defines it."""
    for home in ("optax", "optax.contrib"):
        importlib.import_module(home)
    modules = [m for k, m in sys.modules.items() if k.partition(".")[0] == "optax"]
    found = (vars(module).get(name) for module in modules)
    return next((x for x in found if isinstance(x, type)), None)


if __name__ == "__main__":
    main()
