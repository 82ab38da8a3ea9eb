"""Nodes around a single leaf, such as the variables of Flax: `Param(value=x)`.

Flax gives an optimizer the arrays of its variables, while `jax.tree.map` over the state
of a model keeps the variables around what it returns.
"""

from collections.abc import Sequence
from typing import Any

from jax.tree_util import GetAttrKey, all_leaves, tree_flatten_with_path

from ..base import is_none


_FIELD = GetAttrKey("value")


def is_boxed(path: Sequence) -> bool:
    """Whether a path ends inside of a box."""
    return len(path) > 0 and path[-1] == _FIELD


def unboxed(x: Any) -> Any:
    """What is in a box, if that is a leaf; anything else unchanged."""
    below, _ = tree_flatten_with_path(x, is_leaf=lambda y: y is not x)
    if len(below) != 1 or below[0][0] != (_FIELD,):
        return x
    inside = below[0][1]
    return inside if all_leaves([inside], is_leaf=is_none) else x
