"""The gradient tree, opened once, while a step runs over its leaves."""

import functools as ft
import itertools as it
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..base.protocol import MaskedNode, as_array, is_array, is_none
from ..trees import errors
from ..trees.packed import Packed


class Labels(list):
    """One label for each leaf of a tree, in flattening order, `None` included.

    treedef: the structure that was labelled, a prefix of the tree.
    spans: how many leaves are below each leaf of `treedef`.
    empty: the labels of those below which there is none.
    """

    def __init__(
        self,
        labels: Iterable,
        treedef: Any = None,
        spans: Sequence = (),
        empty: Sequence = (),
    ):
        super().__init__(labels)
        self.treedef = treedef
        self.spans = spans
        self.empty = empty

    def map(self, f: Callable, *columns: Iterable) -> "Labels":
        """`f` of each label, and of what columns have for its leaf if it has one."""
        labels = [f(*row) for row in zip(self, *columns, strict=True)]
        return Labels(labels, self.treedef, self.spans, [f(x) for x in self.empty])

    @property
    def groups(self) -> list[list]:
        """The labels below each leaf of `treedef`; its own if there is no other."""
        below, empty = iter(self), iter(self.empty)
        return [list(it.islice(below, n)) or [next(empty)] for n in self.spans]

    @property
    def tree(self) -> Any:
        """The tree of labels, in which one stands for all below it."""
        return self.treedef.unflatten(group[0] for group in self.groups)


class LeafMask(list):
    """Which leaves something applies to: a boolean for each, in flattening order.

    keep: the same, for the leaves of what `outer` keeps, with their structure.
    outer: what contains this part; `None` if that is everything.
    """

    def __init__(self, keep: Labels, outer: "LeafMask | None" = None):
        found = iter(keep)
        super().__init__(
            keep if outer is None else [on and next(found) for on in outer]
        )
        self.keep = keep
        self.outer = outer

    def cut(self, tree: Any) -> Any:
        """`tree` with a `MaskedNode` in place of what is left out.

        As in Optax, one stands for all below a single label.
        """
        if isinstance(tree, Packed):
            return tree.cut(self.cut)
        if self.outer is not None:
            tree = self.outer.cut(tree)
        if self.keep.treedef is None:
            return tree  # without leaves
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


Scope = LeafMask | None  # `None` is everything


def align(flow: "Gradients", other: Any, name: str) -> list:
    """The parts of `other` that stand where the gradients have leaves."""
    try:
        return flow.treedef.flatten_up_to(other)
    except (ValueError, TypeError):
        cover = _covered(flow, other)
        if cover is None:
            tree = flow.treedef.unflatten(flow.leaves)
            raise errors.mismatch(name, other, "the gradients", tree) from None
        return [x for x, n in zip(*cover[:2], strict=True) for _ in range(n)]


def fold(flow: "Gradients", parts: list, like: Any, scope: Scope) -> Any:
    """The tree of which `align` gave the parts, with others in their place."""
    # Nothing but a mask puts one node in place of several leaves.
    cover = None if scope is None else _covered(flow, like)
    if cover is None:
        return flow.treedef.unflatten(parts)
    found, spans, treedef = cover
    starts = it.accumulate(spans, initial=0)
    rows = zip(found, spans, starts, strict=False)
    return treedef.unflatten(parts[start] if n else x for x, n, start in rows)


def _covered(flow: "Gradients", other: Any) -> tuple[list, list[int], Any] | None:
    """A tree in which a `MaskedNode` may stand for all below a node of the gradients:
    what stands where, for how many leaves, and its structure; `None` if it has another
    structure for another reason."""
    found, spans = [], []

    def walk(tree, x):
        below, treedef = jax.tree.flatten(tree, is_leaf=lambda y: y is not tree)
        if isinstance(x, MaskedNode) or tree is None or treedef == _LEAF:
            found.append(x)
            spans.append(len(jax.tree.leaves(tree, is_leaf=is_none)))
            return _PLACE
        return treedef.unflatten(map(walk, below, treedef.flatten_up_to(x)))

    try:
        places = walk(flow.treedef.unflatten(flow.leaves), other)
    except (ValueError, TypeError):
        return None
    return found, spans, jax.tree.structure(places)


_PLACE = object()
_LEAF = jax.tree.structure(_PLACE)


def is_float0(x: Any) -> bool:
    """Whether `x` is the gradient of an integer, which carries nothing."""
    return getattr(x, "dtype", None) == jax.dtypes.float0


def has_no_gradient(g: Any) -> bool:
    """Whether a leaf has no gradient, so that there is nothing to do for it."""
    return g is None or is_float0(g)


class Gradients:
    """Gradients on their way to becoming updates, leaf by leaf.

    leaves: the current value of each leaf; `None` where there is no gradient.
    treedef: the structure, in which `None` counts as a leaf.
    accepted: whether the state may change, a boolean; `None` if it does anyway.
    """

    accepted: Any = None

    def __init__(self, updates: Any, params: Any):
        self.whole_params = params
        self.open(updates)

    def open(self, updates: Any) -> None:
        self.leaves, self.treedef = jax.tree.flatten(updates, is_leaf=is_none)
        for i, g in enumerate(self.leaves):
            if g is None:
                continue
            if not is_array(g):
                raise TypeError(
                    f"the gradient at {self.path(i)} is no array but a "
                    f"`{type(g).__name__}`; give `None` for leaves without a gradient"
                )
            g = as_array(g)
            self.leaves[i] = g if hasattr(g, "dtype") else jnp.asarray(g)
        self.__dict__.pop("params", None)

    def path(self, i: int) -> str:
        return errors.paths(self.treedef.unflatten(self.leaves))[i]

    @ft.cached_property
    def params(self) -> list:
        """The parameter of each leaf; an error says which does not fit its gradient."""
        if self.whole_params is None:
            raise ValueError(
                "this transformation reads the parameters, but `params` is missing: "
                "call `update(updates, state, params)`"
            )
        params = self.align(self.whole_params, "params")
        for i, (g, p) in enumerate(zip(self.leaves, params, strict=True)):
            if has_no_gradient(g):
                continue
            if not is_array(p):
                raise ValueError(
                    f"there is a gradient at {self.path(i)}, but no array in `params`"
                )
            params[i] = p = as_array(p)
            self.check_shape(i, jnp.shape(p), "its parameter")
        return params

    def align(self, other: Any, name: str) -> list:
        """The parts of `other` that stand where the gradients have leaves."""
        return align(self, other, name)

    def fold(self, parts: list, like: Any, scope: Scope) -> Any:
        """The tree of which `align` gave the parts, with others in their place."""
        return fold(self, parts, like, scope)

    def check_shape(self, i: int, shape: tuple, of: str) -> None:
        if jnp.shape(self.leaves[i]) != shape:
            raise ValueError(
                f"the gradient at {self.path(i)} has shape "
                f"{jnp.shape(self.leaves[i])}, {of} has shape {shape}"
            )

    @property
    def updates(self) -> Any:
        """The current updates as a tree."""
        return self.treedef.unflatten(self.leaves)

    def cut(self, scope: Scope) -> Any:
        """The current updates, without the leaves out of scope."""
        return self.updates if scope is None else scope.cut(self.updates)

    def outline(self, scope: Scope) -> Any:
        """The same for masks, which look at structure, shapes and dtypes alone.

        They see the parameter where there is no gradient: `init` saw it, too.
        """
        if self.whole_params is None or all(g is not None for g in self.leaves):
            return self.cut(scope)
        params = align(self, self.whole_params, "params")
        pairs = zip(self.leaves, params, strict=True)
        tree = self.treedef.unflatten(p if g is None else g for g, p in pairs)
        return tree if scope is None else scope.cut(tree)

    def cut_params(self, scope: Scope) -> Any:
        """The parameters as a tree, without the leaves out of scope."""
        if scope is None or self.whole_params is None:
            return self.whole_params
        params = align(self, self.whole_params, "params")
        return scope.cut(self.treedef.unflatten(params))

    def merge(self, updates: Any, scope: Scope) -> None:
        """Take over what a transformation made of the leaves in scope."""
        if scope is None:
            self.open(updates)
            return
        inner = jax.tree.structure(self.cut(scope), is_leaf=is_none)
        changed = iter(inner.flatten_up_to(updates))
        pairs = zip(self.leaves, scope, strict=True)
        self.leaves = [next(changed) if on else x for x, on in pairs]
