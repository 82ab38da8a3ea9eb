"""Parts of a tree that take turns, as lists of booleans over its leaves."""

from collections.abc import Mapping
from itertools import accumulate
from typing import Any, TypeAlias

import jax
import numpy as np

from .._engine import rules as rx
from .._engine.factories.ranges import whole_number


Part: TypeAlias = list[bool]  # for each leaf, `None` included


def parts_of(fragments: int | Mapping[str, int], params: Any) -> list[Part]:
    """The leaves in each fragment: of neighbours, with about as many elements.

    Patterns of paths have fragments of their own, and so does the rest, which is one.

    Raises a `ValueError` for a pattern that matches nothing, and for fewer arrays than
    fragments.
    """
    leaves = jax.tree.leaves(params, is_leaf=rx.is_none)
    if isinstance(fragments, Mapping):
        counts = [whole_number("fragments", n) for n in fragments.values()] + [1]
        found = rx.selection.resolve_patterns([*fragments], params, "fragments", True)
    else:
        counts, found = [whole_number("fragments", fragments)], [0] * len(leaves)
    parts = []
    for i, count in enumerate(counts):
        inside = [j for j, x in enumerate(leaves) if found[j] == i and x is not None]
        if count > 1 and len(inside) < count:
            raise ValueError(
                f"`fragments` asks for {count} parts of {len(inside)} arrays: use fewer"
            )
        parts += _split([int(np.size(leaves[j])) for j in inside], inside, count)
    return [[j in part for j in range(len(leaves))] for part in parts]


def _split(sizes: list[int], inside: list[int], count: int) -> list[list[int]]:
    """Neighbours together; an array goes where its middle lies."""
    ends, parts = [*accumulate(sizes)], [[] for _ in range(count)]
    for j, size, end in zip(inside, sizes, ends, strict=True):
        parts[int((end - size / 2) / max(ends[-1], 1) * count)].append(j)
    return [part for part in parts if part]


def only(part: Part, tree: Any) -> Any:
    """The tree with `None` for leaves outside of the part."""
    leaves, treedef = jax.tree.flatten(tree, is_leaf=rx.is_none)
    pairs = zip(leaves, part, strict=True)
    return treedef.unflatten(x if inside else None for x, inside in pairs)


def replaced(part: Part, tree: Any, new: Any) -> Any:
    """The tree with the leaves of `new` inside of the part."""
    old, treedef = jax.tree.flatten(tree, is_leaf=rx.is_none)
    rows = zip(old, jax.tree.leaves(new, is_leaf=rx.is_none), part, strict=True)
    return treedef.unflatten(y if inside else x for x, y, inside in rows)
