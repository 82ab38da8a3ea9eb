"""Which axes of the arrays of a tree are copies, and trees with and without stacks.

A mapping names nodes: "layers/**", or "layers", the node `layers`, all of whose arrays
are stacked.  Without stacks, a list of such nodes takes its place, as an unrolled model
has it.  Each node may hold others that are stacks, such as experts within layers.
"""

import functools as ft
import itertools as it
import operator
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.tree_util import tree_flatten_with_path

from ..arrays import of_arrays_or_shapes
from ..arrays.stacked import Axes, from_front, in_front, to_front
from ..base import ArrayTree, MaskedNode, as_array, is_array, is_none
from ..functions.calls import explain_misuse
from . import errors, selection
from .packed import holds_packed, outline
from .paths import open_node
from .patterns import LEFT_OUT, means_tree, names_of, rest_of
from .stacks import FIELDS


# A mapping from patterns to axes, a tree of axes, or a function of the parameters.
StackAxes: TypeAlias = Any
Names: TypeAlias = tuple[str, ...]


def resolve_axes(spec: StackAxes, tree: ArrayTree) -> list[Axes]:
    """The stack axes of each leaf of `tree`, nonnegative; () if it is no stack."""
    tree = outline(tree)
    leaves = jax.tree.leaves(tree, is_leaf=is_none)
    spec = spec(tree) if selection.is_function(spec) else spec
    # A tuple may be that of the parameters, or the axes of an array.
    try:
        labels = selection.by_structure(spec, tree)
    except (ValueError, TypeError):
        labels = selection.resolve(spec, tree, "axes", kind=tuple)
    axes = []
    rows = zip(labels, leaves, _names(tree), strict=True)
    for i, (label, x, names) in enumerate(rows):
        shape = jnp.shape(as_array(x)) if is_array(x) else ()
        if names is not None:  # without those that the array does not have
            found = tuple(y for y in _tuple(label) if y in names or type(y) is not str)
            label = tuple(names.index(y) if type(y) is str else y for y in found)
        try:
            axes.append(checked_axes(label, len(shape)) if is_array(x) else ())
        except (ValueError, TypeError) as error:
            where = f"the value of `axes` for {errors.paths(tree)[i]}"
            text = f"{where} is {label!r}, {error} for an array of shape {shape}"
            raise errors.of_step(text, type(error)) from None
    return axes


def _names(tree: ArrayTree) -> Iterator[list | None]:
    """For each leaf the names of its axes, if it is in a node that has them."""

    def is_named(x):
        return not is_array(x) and isinstance(getattr(x, "axes", None), tuple)

    for x in jax.tree.leaves(tree, is_leaf=lambda x: x is None or is_named(x)):
        names = (
            [getattr(axis, "name", axis) for axis in x.axes] if is_named(x) else None
        )
        yield from [names] * len(jax.tree.leaves(x, is_leaf=is_none))


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
    """Split the stacks of parameters, or of a state, as `stacked` sees them.

        {"layers": {"w": (L, m, n)}}  ->  {"layers": [{"w": (m, n)}, ...]}

    The node that a pattern names, "**" the root, becomes a list of L nodes, or lists of
    lists for several axes; nodes in it may be stacks of their own.  A state of
    `stacked(tx, axes)` becomes one of `tx` for parameters that are split likewise.

    tree: parameters or a state, of arrays or of their shapes, not packed.
    axes: see `stacked`; no function.

    Raises a `TypeError` for a packed tree, and a `ValueError`, with the paths, for axes
    that do not fit, and for arrays of a node that cannot be split together: name each
    of them by a pattern of its own.

    >>> tree = {"layers": {"w": jnp.ones((2, 3))}}
    >>> len(stepax.tree.unstack(tree, {"layers/**": 0})["layers"])
    2
    """
    if not errors.holds_state(tree):
        resolve_axes(axes, tree)
    lengths = {}

    def split(part, lead):
        spec = _Spec(axes, part)
        rows = [(k, x, spec.axes(k, x, lead)) for k, x in _leaves(part)]
        return _split(spec, lengths, part, (), [at for _, _, at in rows])

    # Once more for nodes that hold nothing here, but elsewhere in the state.
    _over_parts(split, tree)
    return _over_parts(split, tree)


@explain_misuse
def stack(tree: ArrayTree, axes: StackAxes) -> ArrayTree:
    """Join what `unstack` splits, such as parameters or a state of an unrolled model.

        {"layers": [{"w": (m, n)}, ...]}  ->  {"layers": {"w": (L, m, n)}}

    tree: parameters or a state, with lists, or tuples, of equal nodes for stacks.
    axes: for the tree that is returned, see `stacked`; no function.

    Raises a `TypeError` for a packed tree, and a `ValueError` that names the path where
    such a list is missing.

    >>> layers = [{"w": jnp.ones(2)}, {"w": jnp.zeros(2)}]
    >>> stepax.tree.stack({"layers": layers}, {"layers/**": 0})["layers"]["w"].shape
    (2, 2)
    """
    return _over_parts(
        lambda part, lead: _join(_Spec(axes, part), part, (), lead, 0), tree
    )


class _Spec:
    """The patterns of a specification in order, for a tree with or without stacks."""

    def __init__(self, axes: StackAxes, tree: ArrayTree):
        if holds_packed(tree):
            raise TypeError("the tree is packed: use `stepax.tree.unpack` first")
        if selection.is_function(axes):
            raise TypeError("`axes` is a function; give what it returns for parameters")
        paths = [_without_index(path) for path, _ in selection.open_paths(tree)]
        self.entries = list(_entries(axes, paths))

    def axes(self, path: Names, x: Any, lead: int | None, more: int = 0) -> Axes:
        """The stack axes of a leaf that will have some more axes.

        lead: number of axes before those of the parameter; `None` if it has another
            shape, and the stack axes are in front.
        """
        if not is_array(x):
            return ()
        labels = (y for k, y in self.entries if rest_of(k, path) is not None)
        label = next(labels, None)
        if lead is None:
            return in_front(_tuple(label))
        try:
            axes = checked_axes(label, jnp.ndim(x) + more - lead)
        except (ValueError, TypeError) as error:
            text = f"the value of `axes` for {'/'.join(path)} is {label!r}, {error}"
            raise type(error)(text) from None
        return tuple(i + lead for i in axes)

    def number(self, path: Names) -> int:
        """The number of stack axes of a node; 0 if no pattern names it."""
        ends = [(k[:-1] if k[-1:] == ("**",) else k, x) for k, x in self.entries]
        return next((len(_tuple(x)) for k, x in ends if rest_of(k, path) == ()), 0)


def _entries(spec: StackAxes, paths: list[tuple], above: Names = ()) -> Iterator[tuple]:
    """Pairs of the names of a pattern and a label.

    paths: the rest of each path that the patterns above match.
    """
    is_axes = isinstance(spec, tuple) and all(isinstance(x, int) for x in spec)
    if is_axes or spec is None or jax.tree_util.all_leaves([spec]):
        yield above, spec
        return
    is_tree = means_tree(spec, paths)
    for key, x in selection.branches(spec):
        names = tuple(key.split("/")) if is_tree else names_of(key)
        rests = [rest_of(names, path) for path in paths]
        found = [rest for rest in rests if rest is not None]
        yield from _entries(x, found, (*above, *names))


def _without_index(path: tuple) -> tuple:
    """A path without what is in place of a stack at its end."""
    is_index = path and path[-1] is not LEFT_OUT and path[-1].isdigit()
    return _without_index(path[:-1]) if is_index else path


def _over_parts(f: Callable, tree: ArrayTree, lead: int | None = 0) -> ArrayTree:
    """`f` of each part of a state that may be like the parameters, or of parameters."""
    if not errors.holds_state(tree):
        return f(tree, lead)
    children, treedef = open_node(tree)
    kept, reduced = FIELDS.get(type(tree).__name__, ((), ()))
    made = []
    for key, x in children:
        name = selection.path_names((key,))[0]
        # The memory of L-BFGS has an axis more.
        is_reduced = lead is None or name in reduced
        below = None if is_reduced else int(name.endswith("_memory"))
        is_kept = name in kept or _is_number(x)
        made.append(x if is_kept else _over_parts(f, x, below))
    return treedef.unflatten(made)


def _is_number(x: object) -> bool:
    return is_array(x) and jnp.ndim(as_array(x)) == 0


def _children(tree: ArrayTree, path: Names) -> tuple[list, Any]:
    """The children of a node with their paths, and the structure to rebuild it."""
    below, treedef = open_node(tree)
    return [((*path, *selection.path_names((k,))), x) for k, x in below], treedef


def _leaves(tree: ArrayTree, path: Names = ()) -> list:
    """The leaves of a tree, `None` included, and their paths."""
    found, _ = tree_flatten_with_path(tree, is_leaf=is_none)
    return [((*path, *(selection.path_names(k) if k else ())), x) for k, x in found]


def _split(
    spec: _Spec, lengths: dict, tree: ArrayTree, path: Names, axes: list[Axes], used=0
) -> ArrayTree:
    """A node with lists of nodes for stacks.

    lengths: by path, those of the axes along which nodes have been split.
    axes: the stack axes of its leaves that are left.
    used: how many a node around it has split off.
    """
    leaves, treedef = jax.tree.flatten(tree, is_leaf=is_none)
    k = max(0, spec.number(path) - used)
    if k:
        known = zip(_leaves(tree, path), axes, strict=True)
        stacks = {
            "/".join(below): tuple(jnp.shape(x)[i] for i in at[:k])
            for (below, x), at in known
            if is_array(x)
        }
        if len(set(stacks.values())) > 1:
            raise ValueError(
                f"`axes` names {'/'.join(path) or 'the root'}, but its arrays cannot "
                f"be split together: the lengths are {stacks}; name each by a pattern"
            )
        found = next(iter(stacks.values()), lengths.get(path))
        if found is None:  # known when the rest has been split
            return tree
        lengths[path] = found
        left = [_relative(at[k:], at[:k]) for at in axes]

        def one(index):
            parts = [ft.partial(_part, at[:k], index) for at in axes]
            rows = zip(parts, leaves, axes, strict=True)
            xs = [of_arrays_or_shapes(f, x) if at else x for f, x, at in rows]
            return _split(spec, lengths, treedef.unflatten(xs), path, left, used + k)

        return _nested(one, found)
    (children, treedef), each = _children(tree, path), iter(axes)
    if not children:
        return tree
    made = []
    for below, x in children:
        own = list(it.islice(each, len(jax.tree.leaves(x, is_leaf=is_none))))
        made.append(_split(spec, lengths, x, below, own, used))
    return treedef.unflatten(made)


def _part(axes: Axes, index: tuple, x: jax.Array) -> jax.Array:
    return to_front(x, axes)[index]


def _nested(one: Callable, lengths: tuple[int, ...], index: tuple = ()) -> Any:
    """Lists of lists of `one(index)`."""
    if not lengths:
        return one(index)
    return [_nested(one, lengths[1:], (*index, i)) for i in range(lengths[0])]


def _relative(axes: Axes, gone: Axes) -> Axes:
    """The axes of an array that has lost others."""
    return tuple(i - sum(j < i for j in gone) for i in axes)


def _join(
    spec: _Spec, tree: ArrayTree, path: Names, lead: int | None, used: int
) -> ArrayTree:
    """A node with its stacks; see `_split`."""
    # Of what a mask leaves out, not even the number of arrays may be known.
    k = 0 if isinstance(tree, MaskedNode) else spec.number(path) - used
    if k <= 0:
        children, treedef = _children(tree, path)
        made = [_join(spec, x, below, lead, used) for below, x in children]
        return treedef.unflatten(made) if children else tree
    nodes, lengths = [tree], ()
    for _ in range(k):
        if not all(type(x) in (list, tuple) and x for x in nodes):
            raise ValueError(
                f"`axes` names {'/'.join(path) or 'the root'}, where the tree has no "
                f"list of {'lists of ' * (k - 1)}nodes: expected what `unstack` returns"
            )
        lengths = *lengths, len(nodes[0])
        nodes = [x for node in nodes for x in node]
    nodes = [_join(spec, x, path, lead, used + k) for x in nodes]
    rows = zip(*(jax.tree.leaves(x, is_leaf=is_none) for x in nodes), strict=True)
    made = []
    for (below, x), xs in zip(_leaves(nodes[0], path), rows, strict=True):
        if is_array(x):
            axes = spec.axes(below, x, lead, used + k)
            at = _relative(axes[used : used + k], axes[:used])
            x = of_arrays_or_shapes(ft.partial(_whole, lengths, at), *xs)
        made.append(x)
    return jax.tree.structure(nodes[0], is_leaf=is_none).unflatten(made)


def _whole(lengths: tuple[int, ...], axes: Axes, *xs: Any) -> jax.Array:
    joined = jnp.stack(xs)
    return from_front(joined.reshape(*lengths, *joined.shape[1:]), axes)
