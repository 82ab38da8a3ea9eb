"""Which arrays of a tree are stacks, while `stacked` calls what is in it.

Inside of a plan the scopes of rules say it.  A closure calls its transformation with
trees of its own, in which the arrays have the same paths as in that of `stacked`, so
what is inside of it finds their axes by path.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import jax
import numpy as np
from jax.tree_util import tree_flatten_with_path

from ..arrays.stacked import Axes, one_of
from ..base import ArrayTree, is_none


# Of the classes of states by their names: the fields that are no slots, and those
# stored in another shape than the parameter's, with stack axes in front.
FIELDS: dict[str, tuple[frozenset[str], frozenset[str]]] = {}


def register(state: str, scalars: Iterable[str], in_front: Iterable[str]) -> None:
    """Make the fields of a class of states known."""
    FIELDS[state] = frozenset(scalars), frozenset(in_front)


# The shapes and axes of the stacks, by their paths.
_NONE: dict = {}
_FOUND: ContextVar[dict[tuple, tuple]] = ContextVar("stacks", default=_NONE)


@contextlib.contextmanager
def known(tree: ArrayTree, axes: Sequence[Axes] | None) -> Iterator[None]:
    """What is called meanwhile finds the axes of leaves of `tree` by their paths."""
    found: dict = {}
    if axes:
        leaves, _ = tree_flatten_with_path(tree, is_leaf=is_none)
        rows = zip(leaves, axes, strict=True)
        found = {path: (np.shape(x), at) for (path, x), at in rows if at}
    token = _FOUND.set(found)
    try:
        yield
    finally:
        _FOUND.reset(token)


def is_any() -> bool:
    """Whether there may be stacks here."""
    return bool(_FOUND.get())


def axes_in(tree: ArrayTree) -> list[Axes] | None:
    """The stack axes of each leaf, `None` included; `None` if there are no stacks."""
    found = _FOUND.get()
    if not found:
        return None
    leaves, _ = tree_flatten_with_path(tree, is_leaf=is_none)
    axes = [_axes(found, path, np.shape(x)) for path, x in leaves]
    return axes if any(axes) else None


def of_leaves(tree: ArrayTree) -> list[Axes]:
    """As `axes_in`, with () for each leaf if there are no stacks."""
    number = len(jax.tree.leaves(tree, is_leaf=is_none))
    return axes_in(tree) or [()] * number


def _axes(found, path, shape):
    # Some wrappers put pairs, such as real and imaginary parts, in place of an array.
    for n in range(len(path), -1, -1):
        if path[:n] in found:
            known, axes = found[path[:n]]
            # Others join arrays, or move their axes; then it is another array.
            return axes if known == shape else ()
    return ()


def as_one(tree: ArrayTree, axes: Sequence[Axes] | None = None) -> ArrayTree:
    """The tree with the shape and the dtype of one array in place of each stack."""
    if not axes and _FOUND.get():
        axes = axes_in(tree)
    if not axes:
        return tree
    leaves, treedef = jax.tree.flatten(tree, is_leaf=is_none)
    pairs: Any = zip(leaves, axes, strict=True)
    return treedef.unflatten(one_of(x, at) for x, at in pairs)
