"""The leaves of the trees that a metric receives."""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import jax

from .._engine.arrays.numerics import is_numeric
from .._engine.base.protocol import is_array, is_none
from .._engine.trees.paths import join


Of: TypeAlias = Literal["gradients", "updates", "params"]


def picker(of: str) -> Callable:
    """A function from gradients, updates and parameters to the arrays of one tree."""
    places = {"gradients": 0, "updates": 1, "params": 2}
    if of not in places:
        raise ValueError(
            f"`of` is {of!r}, expected one of {', '.join(map(repr, places))}"
        )

    def pick(*trees):
        if of == "params":
            require_params(trees[2])
        # A model may also hold functions.
        return [x for x in jax.tree.leaves(trees[places[of]]) if is_number(x)]

    return pick


def require_params(x: Any) -> None:
    if x is None:
        raise ValueError("this metric needs `params`: pass them to `update`")


def is_number(x: Any) -> bool:
    """Whether a leaf is an array of numbers."""
    return is_array(x) and is_numeric(x)


def beside(x: Any, y: Any) -> list[tuple]:
    """Pairs of the leaves of two trees, `None` included."""
    leaves, treedef = jax.tree.flatten(x, is_leaf=is_none)
    return list(zip(leaves, treedef.flatten_up_to(y), strict=True))


def layers_of(depth: int | None, first: Any, *others: Any) -> dict[str, list]:
    """The leaves of trees by layer: a list for each tree, or `None` for `None`."""
    paths, treedef = jax.tree_util.tree_flatten_with_path(first, is_leaf=is_none)
    trees = [x if x is None else treedef.flatten_up_to(x) for x in (first, *others)]
    places: dict[str, list[int]] = {}
    for i, (path, _) in enumerate(paths):
        places.setdefault(join(path[:depth]), []).append(i)
    return {
        name: [x if x is None else [x[i] for i in at] for x in trees]
        for name, at in places.items()
    }
