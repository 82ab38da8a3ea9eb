"""Which axes of the arrays of a tree are copies, and trees with and without stacks.

A mapping names nodes: "layers/**", or "layers", the node `layers`, all of whose arrays
are stacked.  Without stacks, a list of such nodes takes its place, as an unrolled model
has it.  Each node may hold others that are stacks, such as experts within layers.
"""

import functools as ft
import itertools as it
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.tree_util import tree_flatten_with_path

from ..arrays.stacked import Axes, from_front, in_front, to_front
from ..base import ArrayTree, as_array, is_array, is_none
from ..functions.calls import explain_misuse
from . import errors, selection
from .packed import outline
from .paths import is_named_tuple, open_node
from .patterns import names_of, rest_of
from .stacks import FIELDS


# A mapping from patterns to axes, a tree of axes, or a function of the parameters.
StackAxes: TypeAlias = Any
Names: TypeAlias = tuple[str, ...]


def resolve_axes(spec: StackAxes, tree: ArrayTree) -> list[Axes]:
    """The stack axes of each leaf of `tree`, nonnegative; () if it is no stack.

    Raises a `ValueError` or `TypeError` that names the path of axes that do not fit.
    """
    tree = outline(tree)
    leaves = jax.tree.leaves(tree, is_leaf=is_none)
    spec = spec(tree) if selection.is_function(spec) else spec
    # A tuple may be that of the parameters, or the axes of an array.
    try:
        labels = selection.by_structure(spec, tree)
    except (ValueError, TypeError):
        labels = selection.resolve(spec, tree, "axes", kind=tuple)
    axes = []
    for i, (label, x) in enumerate(zip(labels, leaves, strict=True)):
        shape = jnp.shape(as_array(x)) if is_array(x) else ()
        try:
            axes.append(checked_axes(label, len(shape)) if is_array(x) else ())
        except (ValueError, TypeError) as error:
            where = f"the value of `axes` for {errors.paths(tree)[i]}"
            text = f"{where} is {label!r}, {error} for an array of shape {shape}"
            raise errors.of_step(text, type(error)) from None
    return axes


def _tuple(label: Any) -> tuple:
    if label is None:
        return ()
    return label if isinstance(label, tuple) else (label,)


def checked_axes(label: Any, ndim: int) -> Axes:
    """The axes in a label of an array with `ndim` axes, nonnegative."""
    given = _tuple(label)
    try:
        if any(isinstance(x, bool) for x in given):
            raise TypeError
        given = tuple(map(operator.index, given))
    except TypeError:
        wanted = "expected an axis, a tuple of axes, or `None`"
        raise TypeError(wanted) from None
    if given and not ndim:
        raise ValueError("expected `None`, as a scalar has no axes,")
    axes = tuple(i % ndim for i in given)
    if not all(-ndim <= i < ndim for i in given) or len(set(axes)) < len(axes):
        raise ValueError(f"expected different axes from {-ndim} to {ndim - 1}")
    return axes


@explain_misuse
def unstack(tree: ArrayTree, axes: StackAxes) -> ArrayTree:
    """Split the stacks of a tree, as `stacked` sees them: parameters, or a state.

        {"layers": {"w": (L, m, n)}}  ->  {"layers": [{"w": (m, n)}, ...]}

    The node that a pattern names becomes a list of L nodes, or lists of lists for
    several axes; if its arrays cannot be split together, the nodes in it do.  A state
    of `stacked(tx, axes)` becomes one of `tx` for parameters that are split likewise.
    `stack` is the inverse, bit for bit.

    tree: parameters or a state, whose arrays are not packed.
    axes: see `stacked`; for a state no function, but what it returns.

    Raises the errors of `stacked` for axes that do not fit.
    """
    if selection.is_function(axes):
        axes = axes(outline(tree))
    elif not _holds_state(tree):
        resolve_axes(axes, tree)
    spec, lengths = _Spec(list(_entries(axes))), {}
    split = ft.partial(_split, spec, lengths)
    # Once more for nodes that hold nothing here, but elsewhere in the state.
    _over_parts(split, tree)
    return _over_parts(split, tree)


@explain_misuse
def stack(tree: ArrayTree, axes: StackAxes) -> ArrayTree:
    """Join what `unstack` splits, such as parameters or a state of an unrolled model.

        {"layers": [{"w": (m, n)}, ...]}  ->  {"layers": {"w": (L, m, n)}}

    tree: parameters or a state, with lists of equal nodes in place of stacks.
    axes: for the tree that is returned, see `stacked`; no function.

    Raises a `ValueError` that names the path where such a list is missing.
    """
    spec = _Spec(list(_entries(axes)))
    return _over_parts(lambda part, is_like: _joined(spec, is_like, part), tree)


def _entries(spec: StackAxes, above: Names = ()) -> Iterator[tuple]:
    """Pairs of the names of a pattern and a label, in order."""
    if isinstance(spec, Mapping):  # whose order counts, and JAX would sort it
        for key, x in spec.items():
            yield from _entries(x, (*above, *str(key).split("/")))
        return
    is_axes = isinstance(spec, tuple) and all(isinstance(x, int) for x in spec)
    children = [] if is_axes or spec is None else open_node(spec)[0]
    if not children:
        yield names_of("/".join(above)) if above else (), spec
    for key, x in children:
        yield from _entries(x, (*above, *selection.path_names((key,))))


class _Spec(NamedTuple):
    """The patterns of a specification, and the axes of what they match."""

    entries: list[tuple[Names, Any]]

    def label(self, path: Names) -> Any:
        """The label of a leaf: that of the first pattern that matches."""
        return next((x for k, x in self.entries if rest_of(k, path) is not None), None)

    def axes(self, path: Names, ndim: int, is_like: bool) -> Axes:
        """The stack axes of a leaf with `ndim` axes.

        is_like: whether it is shaped like the parameter; otherwise they are in front.
        """
        label = self.label(path)
        try:
            axes = checked_axes(label, ndim)
        except (ValueError, TypeError) as error:
            text = f"the value of `axes` for {'/'.join(path)} is {label!r}, {error}"
            raise type(error)(text) from None
        return axes if is_like else in_front(axes)

    def is_within(self, path: Names) -> bool:
        """Whether a path leads to a node that a pattern names, or into it."""
        nodes = [
            k[:-1] if k[-1:] == ("**",) else k
            for k, x in self.entries
            if x not in (None, ())
        ]
        return any(rest_of(node, path) is not None for node in nodes)

    def depth(self, node: ArrayTree, path: Names) -> int:
        """The least number of stack axes of the leaves of a node."""
        paths = [k for k, x in _leaves(node, path) if is_array(x)] or [(*path, "")]
        return min(len(_tuple(self.label(k))) for k in paths)


def _holds_state(tree: ArrayTree) -> bool:
    return any(map(_is_state, jax.tree.leaves(tree, is_leaf=_is_state)))


def _is_state(x: object) -> bool:
    return is_named_tuple(x) and type(x).__name__.endswith("State")


def _over_parts(f: Callable, tree: ArrayTree, is_like: bool = True) -> ArrayTree:
    """`f` of each part of a state that may be like the parameters, or of parameters."""
    if not _holds_state(tree):
        return f(tree, is_like)
    children, treedef = open_node(tree)
    kept, reduced = FIELDS.get(type(tree).__name__ if _is_state(tree) else "", ((), ()))
    return treedef.unflatten(
        x
        if (name := selection.path_names((key,))[0]) in kept or _is_number(x)
        else _over_parts(f, x, name not in reduced)
        for key, x in children
    )


def _is_number(x: object) -> bool:
    return is_array(x) and jnp.ndim(as_array(x)) == 0


def _children(tree: ArrayTree, path: Names) -> tuple[list, Any]:
    """The children of a node with their paths, and the structure to rebuild it."""
    below, treedef = open_node(tree)
    return [((*path, *selection.path_names((k,))), x) for k, x in below], treedef


def _leaves(tree: ArrayTree, path: Names) -> list:
    """The leaves of a tree, `None` included, and their paths."""
    found, _ = tree_flatten_with_path(tree, is_leaf=is_none)
    return [((*path, *(selection.path_names(k) if k else ())), x) for k, x in found]


def _split(spec: _Spec, lengths: dict, part: ArrayTree, is_like: bool) -> ArrayTree:
    """A part with lists of nodes in place of stacks; see `_split_node`."""
    axes = [
        spec.axes(path, jnp.ndim(x), is_like) if is_array(x) else ()
        for path, x in _leaves(part, ())
    ]
    return _split_node(spec, lengths, part, (), axes)


def _split_node(
    spec: _Spec, lengths: dict, tree: ArrayTree, path: Names, axes: list[Axes]
) -> ArrayTree:
    """A node that is split if it can be, or that has its children split.

    lengths: by path, those of the axes along which nodes have been split.
    axes: the stack axes of its leaves that are left.
    """
    leaves, treedef = jax.tree.flatten(tree, is_leaf=is_none)
    pairs = list(zip(leaves, axes, strict=True))
    known = [(jnp.shape(x), at) for x, at in pairs if is_array(x)]
    k = min((len(at) for _, at in known), default=0)
    stacks = {tuple(shape[i] for i in at[:k]) for shape, at in known}
    if k and len(stacks) == 1 and spec.is_within(path):
        lengths[path] = stacks.pop()
        left = [_relative(at[k:], at[:k]) for at in axes]

        def one(index):
            xs = [to_front(x, at[:k])[index] if at else x for x, at in pairs]
            return _split_node(spec, lengths, treedef.unflatten(xs), path, left)

        return _nested(one, lengths[path])
    if not known and path in lengths:
        return _nested(lambda index: tree, lengths[path])
    children, treedef = _children(tree, path)
    each, made = iter(axes), []
    for below, x in children:
        own = list(it.islice(each, len(jax.tree.leaves(x, is_leaf=is_none))))
        made.append(_split_node(spec, lengths, x, below, own))
    return treedef.unflatten(made) if children else tree


def _nested(one: Callable, lengths: tuple[int, ...], index: tuple = ()) -> Any:
    """Lists of lists of `one(index)`."""
    if not lengths:
        return one(index)
    return [_nested(one, lengths[1:], (*index, i)) for i in range(lengths[0])]


def _relative(axes: Axes, gone: Axes) -> Axes:
    """The axes of an array that has lost others."""
    return tuple(i - sum(j < i for j in gone) for i in axes)


def _joined(
    spec: _Spec, is_like: bool, tree: ArrayTree, path: Names = (), used: int = 0
) -> ArrayTree:
    """A node with its stacks.

    used: how many stack axes of its leaves are those of nodes around it.
    """
    nodes, lengths = [tree], ()
    while spec.is_within(path) and all(type(x) in (list, tuple) and x for x in nodes):
        lengths = *lengths, len(nodes[0])
        nodes = [x for node in nodes for x in node]
        depth = used + len(lengths)
        if _are_equal(nodes) and spec.depth(nodes[0], path) == depth:
            made = [_joined(spec, is_like, x, path, depth) for x in nodes]
            return _together(spec, is_like, made, path, used, lengths)
    children, treedef = _children(tree, path)
    if children:
        each = (_joined(spec, is_like, x, below, used) for below, x in children)
        return treedef.unflatten(each)
    if is_array(tree) and (label := spec.label(path)) not in (None, ()):
        if len(_tuple(label)) > used:
            raise ValueError(
                f"the array at {'/'.join(path) or 'the root'} is in no list of nodes "
                f"that `axes` joins along {label}: expected what `unstack` returns"
            )
    return tree


def _are_equal(nodes: list) -> bool:
    """Whether all nodes have the same structure, with arrays of the same shapes."""
    forms = [jax.tree.map(jnp.shape, x) for x in nodes]
    return all(form == forms[0] for form in forms)


def _together(
    spec: _Spec,
    is_like: bool,
    nodes: list,
    path: Names,
    used: int,
    lengths: tuple[int, ...],
) -> ArrayTree:
    """Equal nodes as one, whose arrays are stacks."""
    rows = zip(*(jax.tree.leaves(x, is_leaf=is_none) for x in nodes), strict=True)
    made = []
    for (below, x), xs in zip(_leaves(nodes[0], path), rows, strict=True):
        if is_array(x):
            depth = used + len(lengths)
            axes = spec.axes(below, jnp.ndim(x) + depth, is_like)
            at = _relative(axes[used:depth], axes[:used])
            stack = jnp.stack(xs)
            x = from_front(stack.reshape(*lengths, *stack.shape[1:]), at)
        made.append(x)
    return jax.tree.structure(nodes[0], is_leaf=is_none).unflatten(made)
