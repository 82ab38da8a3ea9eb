"""Packs the arrays of a tree into a few vectors, and unpacks them."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp

from ..arrays.numerics import is_numeric
from ..base import ArrayTree, as_array, is_array, is_none
from ..functions.calls import explain_misuse
from . import errors, selection
from .packed import Packed, is_packed, make_layout


T = TypeVar("T")


@explain_misuse
def pack(
    tree: ArrayTree, by: selection.Spec = None, *, like: ArrayTree = None
) -> Packed:
    """Pack all arrays of a tree into one vector for each dtype.

    The result is a tree with these vectors for leaves.  Optimizers accept it as
    parameters, and give each array the same update as if it were separate: masks,
    labels and paths refer to the arrays, and rules that need their shapes get them.
    `unpack` restores the tree, for a model, and is differentiable.

    tree: a tree of arrays; `None` is not a leaf.
    by: labels of any kind that `partition` takes.  Arrays with the same label are
        contiguous, so that a mask or a partition by these labels takes one slice for
        each.  By default matrices come before vectors and scalars.
    like: a packed tree, whose layout is used; or a tree with packed ones in it, such as
        a state or `jax.eval_shape(tx.init, packed_params)`: the corresponding subtrees
        are packed.  Its leaves may be shapes.

    Raises TypeError for leaves that are not numeric arrays, and ValueError if `like`
    has another structure or shape; both name the path.

    >>> packed = stepax.tree.pack(params)
    >>> [x.shape for x in jax.tree.leaves(packed)]
    [(6,)]
    """
    if like is not None:
        # A state keeps its other leaves; a `Packed` alone is the simplest such tree.
        wanted, treedef = jax.tree.flatten(like, is_leaf=is_packed)
        found = errors.matched(treedef, "tree", tree, "`like`", lambda: unpack(like))
        pairs = zip(found, wanted, strict=True)
        return treedef.unflatten(_as(x, y) if is_packed(y) else x for x, y in pairs)
    leaves, treedef = jax.tree.flatten(tree)
    for i, x in enumerate(leaves):
        _check(x, tree, i)
    leaves = [jnp.asarray(as_array(x)) for x in leaves]
    # Matrices first, since weight decay and Muon are most often masked by rank.
    if by is None:
        ranks = [x.ndim < 2 for x in leaves]
    else:
        found = selection.resolve(by, tree, "by")
        nodes = jax.tree.leaves(tree, is_leaf=is_none)
        labels = [x for x, leaf in zip(found, nodes, strict=True) if leaf is not None]
        # In the order of their first appearance: labels need not be sortable.
        ranks = [labels.index(x) for x in labels]
    names = [x.dtype.name for x in leaves]
    groups = {name: [] for name in names}
    # Stable, so that within a label the order of the tree is kept.
    for i in sorted(range(len(leaves)), key=ranks.__getitem__):
        groups[names[i]].append(i)
    return make_layout(treedef, [x.shape for x in leaves], groups).pack(leaves)


def _check(x, tree, i):
    if not is_array(x) or not is_numeric(x):
        raise TypeError(
            f"the leaf at {errors.paths(tree)[i]} is {errors.describe(x)}, expected a "
            "numeric array; separate other leaves, and pack the rest"
        )


@explain_misuse
def unpack(tree: ArrayTree) -> ArrayTree:
    """Restore all packed trees in a tree, which may be packed itself.

    Derivatives with respect to a packed tree are packed, too.

    tree: any tree, such as parameters or a state.

    >>> stepax.tree.unpack(stepax.tree.pack(params))["b"]
    Array([0., 0.], dtype=float32)
    """
    return jax.tree.map(_opened, tree, is_leaf=is_packed)


def _as(tree: ArrayTree, like: Packed) -> Packed:
    """A tree in the layout of another, which may have other dtypes."""
    tree = unpack(tree)  # it may be packed in another layout
    layout = like.layout
    leaves = errors.matched(layout.treedef, "tree", tree, "`like`", like.outline)
    for i, (x, segment) in enumerate(zip(leaves, layout.segments, strict=True)):
        _check(x, tree, i)
        # Under `vmap`, or stacked by `scan`, vectors have leading axes, as have leaves.
        axes = like.vectors[segment.vector].ndim - 1
        if jnp.shape(x)[axes:] != segment.shape:
            raise ValueError(
                f"the leaf at {errors.paths(tree)[i]} has shape {jnp.shape(x)}, in "
                f"`like` it has {segment.shape}{' after others' if axes else ''}"
            )
    return layout.pack(list(map(as_array, leaves)))


def by_leaf(init: Callable, update: Callable) -> tuple[Callable, Callable]:
    """`init` and `update` of a transformation of single arrays, for packed trees."""

    # The state is that of the unpacked tree: it may hold one scalar for each array.
    def init_arrays(params):
        return init(_opened(params))

    def update_arrays(updates, state, params=None, **extra_args):
        if not isinstance(updates, Packed):
            return update(updates, state, params, **extra_args)
        # Keywords such as `grad` are trees like the parameters.
        extra = {k: _opened(x) for k, x in extra_args.items()}
        us, state = update(updates.unpack(), state, _opened(params), **extra)
        return pack(us, like=updates), state

    return init_arrays, update_arrays


def _opened(x: T) -> ArrayTree | T:
    return x.unpack() if is_packed(x) else x
