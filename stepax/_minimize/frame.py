"""Splitting trees into optimized arrays, fixed arrays, and everything else.

A compiled loop carries only arrays.  A tree of parameters may hold more: functions and
flags of a module, random keys, `None`.  Leaves with a derivative are optimized
("moving"), other arrays are fixed ("staying").
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._engine.arrays.numerics import strong_type
from .._engine.base import is_array, is_none
from .._engine.functions.calls import require_takes
from .._engine.trees import errors


class _Mark(NamedTuple):
    name: str


_MOVES, _STAYS = _Mark("moves"), _Mark("stays")


class Frame(NamedTuple):
    """A tree without its arrays, which can be compared and hashed.

    treedef: the structure, with `None` as a leaf.
    marks: for each leaf, whether it moves or stays, or the leaf itself if not an array.
    """

    treedef: Any
    marks: tuple

    def whole(self, moving: Iterable, staying: Iterable) -> Any:
        """The tree with its arrays put back."""
        xs, ys = iter(moving), iter(staying)
        fill = lambda m: next(xs) if m is _MOVES else next(ys) if m is _STAYS else m
        return self.treedef.unflatten(map(fill, self.marks))

    def params(self, moving: Iterable) -> Any:
        """The tree of moving leaves, with `None` for the others."""
        xs = iter(moving)
        fill = lambda m: next(xs) if m is _MOVES else None
        return self.treedef.unflatten(map(fill, self.marks))

    @property
    def is_one(self) -> bool:
        """Whether the tree is a single array."""
        return self.treedef.num_nodes == 1

    @property
    def live(self) -> list[int]:
        """The indices of the moving leaves."""
        return [i for i, mark in enumerate(self.marks) if mark is _MOVES]

    def pick(self, tree: Any) -> list:
        """The moving leaves of a tree.

        Raises a `ValueError` if its structure is another.
        """
        leaves = self.treedef.flatten_up_to(tree)
        found = [leaves[i] for i in self.live]
        if not jax.tree_util.all_leaves(found):  # a tree where there was an array
            raise ValueError(f"expected the structure {self.treedef}")
        return found


def open_start(x0: Any) -> tuple[Frame, list, list]:
    """The frame of the parameters, their moving arrays and their staying arrays."""
    leaves = jax.tree.leaves(x0, is_leaf=is_none)
    for i, x in enumerate(leaves):
        if is_array(x) and jnp.issubdtype(jnp.result_type(x), jnp.integer):
            raise TypeError(
                f"`x0` at {errors.paths(x0)[i]} holds integers ({jnp.result_type(x)}), "
                "which cannot be optimized: convert it, as in `jnp.asarray(x, float)`, "
                "or pass it in `args`"
            )
    frame, moving, staying = split(x0)
    if not moving:
        raise ValueError(
            f"`x0` is {errors.describe(x0)} in which nothing can be optimized, "
            "expected a tree with floating-point arrays"
        )
    return frame, moving, staying


def split(tree: Any) -> tuple[Frame, list, list]:
    """The frame of any tree, its inexact arrays, which move, and its other arrays."""
    leaves, treedef = jax.tree.flatten(tree, is_leaf=is_none)
    marks = tuple(_mark(x) for x in leaves)
    frame = Frame(treedef, marks)
    moving = [strong_type(jnp.asarray(leaves[i])) for i in frame.live]
    return frame, moving, _staying(leaves, marks)


def _mark(x: Any) -> Any:
    if not is_array(x):
        return x
    return _MOVES if jnp.issubdtype(jnp.result_type(x), jnp.inexact) else _STAYS


def open_arguments(args: Any) -> tuple[Frame, list]:
    """The frame of the further arguments, and their arrays, including scalars."""
    leaves, treedef = jax.tree.flatten(args, is_leaf=is_none)
    marks = tuple(_STAYS if is_array(x) else x for x in leaves)
    return Frame(treedef, marks), _staying(leaves, marks)


def arguments_of(name: str, fun: Callable, args: Any) -> tuple[Frame, list]:
    """`open_arguments` for those of a function, with which it must be callable."""
    args = args if isinstance(args, tuple) else (args,)
    require_takes(name, fun, ("params", *(f"args[{i}]" for i in range(len(args)))))
    return open_arguments(args)


def _staying(leaves, marks):
    pairs = zip(leaves, marks, strict=True)
    return [jnp.asarray(x) for x, mark in pairs if mark is _STAYS]
