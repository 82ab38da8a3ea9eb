"""Trees to vectors, and back."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..arrays.numerics import is_numeric
from ..base.protocol import as_array, is_array, is_none
from ..functions.calls import explain_misuse
from . import errors, selection
from .packed import Packed, make_layout


@explain_misuse
def pack(tree: Any, by: Any = None, *, like: Any = None) -> Packed:
    """Put all arrays of a tree into one vector for each dtype.

    The result is a tree with these vectors for leaves.  Optimizers take it for
    parameters, and give each array the update that it would get by itself: masks,
    labels and paths mean the arrays, and rules that need their shapes get them.
    `unpack` makes the tree again, for a model, with derivatives.

    tree: of arrays; `None` is no leaf.
    by: labels of any kind that `partition` takes.  Arrays of one label lie side by
        side, so that a mask or a partition that tells them apart takes one slice for
        each.  By default matrices lie before vectors and scalars.
    like: a packed tree, whose layout is taken; or a tree with packed ones in it, such
        as a state or `jax.eval_shape(tx.init, packed_params)`: what stands in their
        places is packed.  Leaves need only have the shapes.

    Raises TypeError for leaves that are no arrays of numbers, and ValueError where
    `like` has another structure or another shape; both name the path.
    """
    if like is not None:
        return _pack_like(tree, like)
    leaves, treedef = jax.tree.flatten(tree)
    for i, x in enumerate(leaves):
        _check(x, tree, i)
    leaves = [jnp.asarray(as_array(x)) for x in leaves]
    if by is None:
        ranks = [x.ndim < 2 for x in leaves]
    else:
        found = selection.resolve(by, tree, "by")
        nodes = jax.tree.leaves(tree, is_leaf=is_none)
        labels = [x for x, leaf in zip(found, nodes, strict=True) if leaf is not None]
        ranks = [labels.index(x) for x in labels]
    names = [x.dtype.name for x in leaves]
    groups = {name: [] for name in names}
    for i in sorted(range(len(leaves)), key=ranks.__getitem__):
        groups[names[i]].append(i)
    return make_layout(treedef, [x.shape for x in leaves], groups).pack(leaves)


def _check(x, tree, i):
    if not is_array(x) or not is_numeric(x):
        raise TypeError(
            f"the leaf at {errors.paths(tree)[i]} is {errors.describe(x)}, expected an "
            "array of numbers; keep other leaves apart, and pack the rest"
        )


@explain_misuse
def unpack(tree: Any) -> Any:
    """The tree of a packed one; any packed trees within another, such as a state.

    Derivatives with respect to the packed tree are packed, too.

    tree: any.
    """
    return jax.tree.map(_opened, tree, is_leaf=lambda x: isinstance(x, Packed))


def _pack_like(tree: Any, like: Any) -> Any:
    is_packed = lambda x: isinstance(x, Packed)
    wanted, treedef = jax.tree.flatten(like, is_leaf=is_packed)
    try:
        found = treedef.flatten_up_to(tree)
    except (ValueError, TypeError):
        raise errors.mismatch("tree", tree, "`like`", unpack(like)) from None
    pairs = zip(found, wanted, strict=True)
    return treedef.unflatten(_as(x, y) if is_packed(y) else x for x, y in pairs)


def _as(tree: Any, like: Packed) -> Packed:
    """A tree in the layout of another, which may have other dtypes."""
    tree = unpack(tree)
    layout = like.layout
    try:
        leaves = layout.treedef.flatten_up_to(tree)
    except (ValueError, TypeError):
        raise errors.mismatch("tree", tree, "`like`", like.outline()) from None
    for i, (x, segment) in enumerate(zip(leaves, layout.segments, strict=True)):
        _check(x, tree, i)
        axes = like.vectors[segment.vector].ndim - 1
        if jnp.shape(x)[axes:] != segment.shape:
            raise ValueError(
                f"the leaf at {errors.paths(tree)[i]} has shape {jnp.shape(x)}, in "
                f"`like` it has {segment.shape}{' after others' if axes else ''}"
            )
    return layout.pack(list(map(as_array, leaves)))


def by_leaf(init: Callable, update: Callable) -> tuple[Callable, Callable]:
    """The functions of a transformation that works array by array, for packed trees."""

    def init_arrays(params):
        return init(_opened(params))

    def update_arrays(updates, state, params=None, **extra_args):
        if not isinstance(updates, Packed):
            return update(updates, state, params, **extra_args)
        extra = {k: _opened(x) for k, x in extra_args.items()}
        us, state = update(updates.unpack(), state, _opened(params), **extra)
        return pack(us, like=updates), state

    return init_arrays, update_arrays


def _opened(x: Any) -> Any:
    return x.unpack() if isinstance(x, Packed) else x
