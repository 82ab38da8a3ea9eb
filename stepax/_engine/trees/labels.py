"""Labels of leaves, and masks made from them."""

import itertools as it
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import jax

from ..base import MaskedNode, is_none
from .packed import Packed


class Labels(list):
    """One label for each leaf of a tree, in flattening order, `None` included.

    treedef: the structure that was labelled, a prefix of the tree.
    spans: the number of leaves below each leaf of `treedef`.
    empty: the labels of nodes without leaves.
    """

    def __init__(
        self,
        labels: Iterable,
        treedef: Any = None,
        spans: Sequence[int] = (),
        empty: Sequence = (),
    ):
        super().__init__(labels)
        self.treedef = treedef
        self.spans = spans
        self.empty = empty

    def map(self, f: Callable, *columns: Iterable) -> "Labels":
        """`f` of each label, and of the entries of `columns` for its leaf, if any."""
        labels = [f(*row) for row in zip(self, *columns, strict=True)]
        return Labels(labels, self.treedef, self.spans, [f(x) for x in self.empty])

    @property
    def groups(self) -> list[list]:
        """The labels below each leaf of `treedef`; an empty node's own label."""
        below, empty = iter(self), iter(self.empty)
        return [list(it.islice(below, n)) or [next(empty)] for n in self.spans]

    @property
    def tree(self) -> Any:
        """The labels as a prefix of the tree, one for all leaves below it."""
        assert self.treedef is not None
        return self.treedef.unflatten(group[0] for group in self.groups)


class LeafMask(list):
    """Which leaves something applies to: one boolean per leaf, in flattening order.

    keep: the mask for the leaves that `outer` keeps, with their structure.
    outer: the mask around this one; `None` if there is none.
    """

    def __init__(self, keep: Labels, outer: "LeafMask | None" = None):
        found = iter(keep)
        super().__init__(
            keep if outer is None else [on and next(found) for on in outer]
        )
        self.keep = keep
        self.outer = outer

    def cut(self, tree: Any) -> Any:
        """`tree` with a `MaskedNode` in place of masked leaves.

        As in Optax, a single one replaces all leaves below a label.
        """
        if isinstance(tree, Packed):
            return tree.cut(self.cut)
        if self.outer is not None:
            tree = self.outer.cut(tree)
        if self.keep.treedef is None:
            return tree  # it has no leaves
        below = self.keep.treedef.flatten_up_to(tree)
        return self.keep.treedef.unflatten(map(_cut, below, self.keep.groups))


def _cut(tree: Any, keep: list[bool]) -> Any:
    if all(keep):
        return tree
    if not any(keep):
        return MaskedNode()
    leaves, treedef = jax.tree.flatten(tree, is_leaf=is_none)
    pairs = zip(leaves, keep, strict=True)
    return treedef.unflatten(x if on else MaskedNode() for x, on in pairs)


Scope: TypeAlias = LeafMask | None  # `None` means all leaves
