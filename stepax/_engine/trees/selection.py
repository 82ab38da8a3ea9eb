"""Decides to which leaves masks and labels apply; no other file does.

A specification of labels (of booleans, for a mask) may be

1. a function of the tree that returns one of the following.  A callable that is itself
   a tree with leaves, such as an Equinox module, is a tree of labels and never called;
2. a tree of labels with the structure of the tree, or a prefix of it;
3. a mapping from names or path patterns to labels, if it does not fit the structure.
   Names of a path are joined by "/"; "*" matches any name and "**" any number of names.
   A pattern applies to everything below its match, and a single name matches at any
   depth.  The first pattern that matches a leaf decides.  Mappings may be nested, also
   inside a tree of labels.  One whose keys are the fields of its node, of all that hold
   arrays, or the paths of all arrays, is a tree: a key means that field or path alone.

A label may be in a box, a node such as a variable of Flax, where the tree has none.
"""

import difflib
import itertools as it
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeGuard

import jax
import numpy as np
from jax.core import Tracer
from jax.tree_util import Partial, tree_flatten_with_path, tree_structure

from ..arrays.stacked import Axes, joined
from ..base import ArrayTree, MaskedNode, is_array, is_none
from ..functions.calls import require_takes
from . import errors
from .boxes import is_boxed, unboxed
from .packed import Packed, outline
from .patterns import (
    LEFT_OUT,
    is_match as is_match,
    key_name,
    means_tree,
    names_of as names_of,
    path_names as path_names,
    rest_of,
)


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
    axes: for each leaf the axes along which it is a stack; `None` if there is no stack.
    """

    def __init__(
        self,
        keep: Labels,
        outer: "LeafMask | None" = None,
        axes: Sequence[Axes] | None = None,
    ):
        found = iter(keep)
        super().__init__(
            keep if outer is None else [on and next(found) for on in outer]
        )
        self.keep = keep
        self.outer = outer
        self.axes = outer.axes if axes is None and outer is not None else axes

    @property
    def is_whole(self) -> bool:
        """Whether no leaf is masked, and no node without leaves either."""
        within = self.outer is None or self.outer.is_whole
        return within and all(self) and all(self.keep.empty)

    def cut(self, tree: ArrayTree) -> Any:
        """`tree` with a `MaskedNode` for masked leaves, one for all below a label."""
        if isinstance(tree, Packed):
            return tree.cut(self.cut)
        if self.outer is not None:
            tree = self.outer.cut(tree)
        if self.keep.treedef is None:
            return tree  # it has no leaves
        below = self.keep.treedef.flatten_up_to(tree)
        return self.keep.treedef.unflatten(map(_cut, below, self.keep.groups))


def _cut(tree: ArrayTree, keep: list[bool]) -> Any:
    if all(keep):
        return tree
    if not any(keep):
        return MaskedNode()
    leaves, treedef = jax.tree.flatten(tree, is_leaf=is_none)
    pairs = zip(leaves, keep, strict=True)
    return treedef.unflatten(x if on else MaskedNode() for x, on in pairs)


Scope: TypeAlias = LeafMask | None  # `None` means all leaves


def with_axes(axes: Sequence[Axes] | None, outer: Scope = None) -> Scope:
    """The same leaves, of which some are stacks; `axes` within those of `outer`."""
    if not axes:
        return outer
    keep = Labels([True] * len(axes), tree_structure(0), [len(axes)])
    if outer is not None:
        found, old = iter(axes), outer.axes or [()] * len(outer)
        pairs = zip(outer, old, strict=True)
        axes = [joined(was, next(found)) if on else () for on, was in pairs]
    return LeafMask(keep, outer, axes)


Spec: TypeAlias = Any  # of labels or of a mask; see above


def is_function(spec: Spec) -> TypeGuard[Callable]:
    """Whether to call `spec`; a callable module that is a tree counts as a tree."""
    if not callable(spec):
        return False
    # A module without leaves, such as an activation, can only be a function; a
    # `Partial` is a tree, but made to be called.
    is_tree = _is_node(spec) and tree_structure(spec).num_leaves > 0
    return isinstance(spec, Partial) or not is_tree


def _is_node(x: object) -> bool:
    return not jax.tree_util.all_leaves([x], is_leaf=is_none)


def _is_like(spec: Spec, tree: ArrayTree) -> bool:
    """Whether a callable, as a `Partial` of labels, has the structure of `tree`."""
    if type(spec) is not type(tree) or not _is_node(spec):
        return False
    structures = [jax.tree.structure(x, is_leaf=is_none) for x in (spec, tree)]
    return structures[0] == structures[1]


def resolve(
    spec: Spec, tree: ArrayTree, what: str = "labels", kind: type | None = None
) -> Labels:
    """One label for each leaf of `tree`, `None` included, in flattening order.

    A leaf that is not an array may remain without a label, and has `None` for it.

    kind: a class of labels that are trees themselves, such as named tuples.
    """
    # Labels refer to the arrays in a packed tree, and masks need no elements.
    tree = outline(tree)
    if _has_no_leaf(tree):
        return _of_no_leaf(spec, tree)
    if is_function(spec) and not _is_like(spec, tree):
        require_takes(what, spec, ("params",))
        spec = spec(tree)
    if kind is not None:
        found = resolve(_sealed(spec, kind), tree, what)
        return found.map(lambda x: x.label if isinstance(x, _Sealed) else x)
    # By structure first: a dictionary of parameters may have the same keys as patterns.
    try:
        return by_structure(spec, tree)
    except (ValueError, TypeError) as error:
        if callable(spec) and type(spec) is not type(tree):
            text = (
                f"`{what}` is a `{type(spec).__name__}`, which is callable but also a "
                "tree with leaves, so it is used as a tree, and does not fit the "
                f"parameters; if it is a function of them, pass `lambda params: "
                f"{what}(params)`"
            )
            raise errors.of_step(text, TypeError) from error
        nodes = jax.tree.leaves(spec, is_leaf=lambda x: isinstance(x, Mapping))
        if any(isinstance(x, Mapping) for x in nodes):
            return _by_path(spec, tree, what)
        is_box = lambda x: unboxed(x) is not x
        if any(map(is_box, jax.tree.leaves(spec, is_leaf=is_box))):
            bare = jax.tree.map(unboxed, spec, is_leaf=is_box)
            return resolve(bare, tree, what)
        raise errors.mismatch(what, spec, "the parameters", tree) from error


def _of_no_leaf(spec: Spec, tree: ArrayTree) -> Labels:
    """The labels of a tree without leaves: the labels of its empty nodes, if any."""
    # Such is also the placeholder that `map_params` passes to `init`, with which a
    # user's function could do nothing; so it is not called.
    try:
        return Labels([]) if is_function(spec) else by_structure(spec, tree)
    except (ValueError, TypeError):
        return Labels([])


@dataclass(frozen=True)
class _Sealed:
    """A label that is a tree, as a leaf."""

    label: object


def _sealed(spec: Spec, kind: type) -> Spec:
    if isinstance(spec, kind):
        return _Sealed(spec)
    if isinstance(spec, dict):  # JAX would sort it, but the order of patterns counts
        return {key: _sealed(x, kind) for key, x in spec.items()}
    ends = kind | dict
    leaves, treedef = jax.tree.flatten(spec, is_leaf=lambda x: isinstance(x, ends))
    sealed = (_sealed(x, kind) if isinstance(x, ends) else x for x in leaves)
    return treedef.unflatten(sealed)


def resolve_mask(spec: Spec, tree: ArrayTree, what: str = errors.MASK) -> Labels:
    """A boolean for each leaf of `tree`, `None` only for non-arrays; see `resolve`."""
    tree = outline(tree)
    labels = resolve(spec, tree, what)
    # The usual case, checked first: this runs in every un-jitted step.
    if all(type(x) is bool for x in [*labels, *labels.empty]):
        return labels
    leaves = jax.tree.leaves(tree, is_leaf=is_none)

    def boolean(x, i=None):
        problem = _problem(x)
        if not problem:
            return bool(x)
        if i is None or not is_array(leaves[i]):
            return None
        path = errors.paths(tree)[i]
        text = f"the value of `{what}` for {path} {problem}"
        raise errors.of_step(text, TypeError)

    return labels.map(boolean, range(len(labels)))


def _problem(x: object) -> str:
    """Why `x` is not a boolean; empty if it is one."""
    # Integers, 0.0 and 1.0, and arrays of one element count as booleans, as in Optax.
    if isinstance(x, Tracer):
        return "is traced, but must be known before the program runs"
    if isinstance(x, np.generic | np.ndarray | jax.Array):
        is_one = x.size == 1 and (x.dtype.kind in "biu" or x.item() in (0, 1))
        found = f"of dtype {x.dtype} and shape {x.shape}"
    else:
        is_one = isinstance(x, int) or isinstance(x, float) and x in (0, 1)
        found = f"`{x!r}`"
    return "" if is_one else f"is {found}, but must be a boolean"


def by_structure(spec: Spec, tree: ArrayTree) -> Labels:
    # `spec` may be a prefix: one label then stands for a whole subtree.
    found, treedef = jax.tree.flatten(spec, is_leaf=is_none)
    below = treedef.flatten_up_to(tree)
    spans = [len(jax.tree.leaves(x, is_leaf=is_none)) for x in below]
    pairs = list(zip(found, spans, strict=True))
    labels = [x for x, n in pairs for _ in range(n)]
    return Labels(labels, treedef, spans, [x for x, n in pairs if n == 0])


def resolve_patterns(
    patterns: Sequence[str], tree: ArrayTree, what: str, is_open: bool = False
) -> list:
    """The index of the first pattern that matches, for each leaf of `tree`.

    A leaf that is not an array may remain without one, and has `None` for it.

    is_open: whether other leaves may remain without one, too; their index is the number
        of patterns.
    """
    tree = outline(tree)
    if _has_no_leaf(tree):
        return []
    spec = {pattern: i for i, pattern in enumerate(patterns)}
    return _by_path(spec, tree, what, len(patterns) if is_open else None)


def decided(
    spec: Spec, tree: ArrayTree, is_open: bool = False
) -> dict[str, tuple[str, ...]]:
    """For each pattern of a mapping the paths of the leaves that it decides for."""

    def written(spec, *above):
        if not isinstance(spec, Mapping):
            return "/".join(above)
        return {k: written(x, *above, str(k)) for k, x in spec.items()}

    spec = written(spec)
    labels = _by_path(spec, outline(tree), "patterns", "" if is_open else None)
    paths = ["/".join(names) for names in leaf_names(tree)]
    rows = list(zip(labels, paths, strict=True))
    return {k: tuple(path for x, path in rows if x == k) for k in _patterns(spec)}


def _has_no_leaf(tree: ArrayTree) -> bool:
    return not jax.tree.leaves(tree, is_leaf=is_none)


def leaf_names(tree: ArrayTree) -> list[tuple[str, ...]]:
    """The names on the path of each leaf, `None` included."""
    below, _ = tree_flatten_with_path(outline(tree), is_leaf=is_none)
    return [path_names(path) for path, _ in below]


class _Hidden(str):
    """The field of a box at the end of a path, which errors leave out."""


def _show(path: Iterable) -> str:
    shown = [x for x in path if x is not LEFT_OUT and not isinstance(x, _Hidden)]
    return "/".join(shown) or "the root"


def _names(path: Sequence) -> tuple[str, ...]:
    names = path_names(path)
    return (*names[:-1], _Hidden(names[-1])) if is_boxed(path) else names


def open_paths(tree: ArrayTree) -> list[tuple[tuple, Any]]:
    """The leaves of a tree, and its nodes without any, after the names of their paths.

    The path of a node, and of a leaf that is not an array, ends with `LEFT_OUT`.
    """
    found, _ = tree_flatten_with_path(
        tree, is_leaf=lambda x: x is None or _has_no_leaf(x)
    )
    return [((*_names(k), *(LEFT_OUT,) * (not is_array(x))), x) for k, x in found]


def _by_path(
    spec: Spec, tree: ArrayTree, what: str, otherwise: object = None
) -> Labels:
    # Leaves that an outer mask leaves out still count as matched: patterns for all
    # parameters may be used inside a partition that sees only a few.
    found = open_paths(tree)
    below, leaves = dict(enumerate(path for path, _ in found)), [x for _, x in found]
    labels = [otherwise] * len(leaves)
    left = _assign(spec, below, labels, what)
    missed = [_show(below[i]) for i in sorted(left) if is_array(leaves[i])]
    if missed and otherwise is None:
        raise errors.of_step(
            f"nothing in `{what}` matches {errors.list_some(missed)}; the patterns are "
            f'{[*_patterns(spec)]}, and a final "**" matches all others'
        )
    pairs = zip(labels, leaves, strict=True)
    seen = [(x, leaf) for x, leaf in pairs if not _has_no_leaf(leaf)]
    found = [x if is_array(leaf) else None for x, leaf in seen]
    return Labels(found, jax.tree.structure(tree, is_leaf=is_none), [1] * len(found))


def branches(spec: Spec) -> list[tuple[str, Spec]]:
    """The children of a node of a specification, with their patterns."""
    # Not by `tree_flatten`, which sorts: the first pattern that matches decides.
    if isinstance(spec, Mapping):
        return [(str(k), unboxed(x)) for k, x in spec.items()]
    below, _ = tree_flatten_with_path(spec, is_leaf=lambda x: x is not spec)
    return [(key_name(key), unboxed(x)) for (key,), x in below]


def _patterns(spec: Spec, above: tuple = ()) -> Iterator[str]:
    """The patterns of a specification, those of nested ones with the names above."""
    for pattern, label in branches(spec):
        if isinstance(label, Mapping) or _is_node(label):
            yield from _patterns(label, (*above, pattern))
        else:
            yield "/".join((*above, pattern))


def _assign(
    spec: Spec, below: dict, labels: list, what: str, above: tuple = ()
) -> set[int]:
    """Write the labels of `spec` for the leaves in `below`; return unmatched leaves.

    below: a dict from the indices of leaves to the rest of their paths.
    above: the patterns that matched what comes before, for errors.
    """
    left = set(below)
    is_tree = means_tree(spec, below.values())
    for pattern, label in branches(spec):
        names = tuple(pattern.split("/")) if is_tree else names_of(pattern)
        rests = {i: rest_of(names, path) for i, path in below.items()}
        matched = {i: rest for i, rest in rests.items() if rest is not None}
        # An empty node may stand for leaves that several patterns match.
        is_open = {i: rest[-1:] == (LEFT_OUT,) for i, rest in matched.items()}
        fresh = {i: x for i, x in matched.items() if i in left or is_open[i]}
        if pattern == "**" and matched and not fresh:
            continue  # it stands for the others, of which there may be none
        if not fresh:
            paths = [_show((*above, *path)) for path in below.values()]
            written = "/".join((*above, pattern))
            raise _nothing(written, pattern, bool(matched), what, paths)
        if isinstance(label, Mapping) or _is_node(label):
            left -= set(fresh) - _assign(label, fresh, labels, what, (*above, pattern))
            continue
        for i in fresh:
            labels[i] = label
        left -= set(fresh)
    return left


def _nothing(
    written: str, pattern: str, taken: bool, what: str, paths: list[str]
) -> Exception:
    if taken:
        return errors.of_step(
            f"the pattern `{written}` in `{what}` has no leaf left: patterns before it "
            "match all of its leaves; put it first"
        )
    parts = sorted({part for path in paths for part in [path, *path.split("/")]})
    near = difflib.get_close_matches(pattern, parts, n=3)
    hint = f"; did you mean {' or '.join(f'`{x}`' for x in near)}?" if near else ""
    return errors.of_step(
        f"the pattern `{written}` in `{what}` matches no leaf of "
        f"{errors.list_some(paths)}{hint}"
    )
