"""Row-wise states and steps for large tables, such as embeddings.

Mudigere et al., 2021, Software-Hardware Co-design for Fast and Scalable Training of
Deep Learning Recommendation Models (arXiv:2104.05158), section 4.1.4, on row-wise
AdaGrad.  Steps of the rows that a batch contains are what TensorFlow calls LazyAdam and
PyTorch SparseAdam.

A row is the slice at one index of the first axis.
"""

import functools as ft
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.coding import is_coded
from .._engine.trees import stacks
from .._engine.trees.search import SlotMark


@rx.traits("stores")
@rx.public("wrapper", paper="arXiv:2104.05158")
def row_states(
    inner: rx.TransformationLike, tables: rx.MaskOrFn = None
) -> rx.GradientTransformationExtraArgs:
    """Store one mean square for each row of a table, instead of one for each element.

        nu_i = b2 nu_i + (1 - b2) mean_j |g_ij|²,   for a table of V rows: V numbers

    for Adam, and likewise for each state that is a mean, a sum or a maximum of squares,
    as in `adagrad`, `rmsprop`, `radam`, `nadam`, `amsgrad`, `laprop`, `adopt`,
    `ademamix` and `grams`.  Other states, such as momentum, are stored in full.  The
    state has the structure of that of `inner`, with arrays of shape (V, 1).  Jit
    `init`, which otherwise allocates a temporary full state.

    inner: a transformation of Stepax.
    tables: the parameters that are treated as tables; see `masked`.  By default all
        with two or more axes; vectors are unchanged.

    `init` raises a `ValueError` if nothing in the state can be stored by rows, and
    lists what it has; it raises a `TypeError` for packed parameters.
    """
    tx = rx.with_keywords(inner, "`inner` of `row_states`")
    found = ft.cache(lambda: rx.slots_like_params(tx))

    def init(params):
        if isinstance(params, SlotMark):
            return tx.init(params)
        parts, treedef = found()
        if not any(map(_may_be_by_rows, parts)):
            names = sorted({part.name for part in parts if part is not None})
            raise ValueError(
                "`row_states`: nothing in this state is a mean of squares that can be "
                f"stored by rows; the slots shaped like the parameters are {names}"
            )
        if rx.holds_packed(params):
            raise TypeError(
                "`row_states` finds no rows in packed parameters: omit "
                "`stepax.tree.pack`"
            )
        which = _tables(tables, params)
        values = treedef.flatten_up_to(tx.init(params))
        pairs = zip(parts, values, strict=True)
        return treedef.unflatten(
            _by_rows(part.name, which, x) if part and _may_be_by_rows(part) else x
            for part, x in pairs
        )

    if isinstance(tx, rx.Transformation):
        return rx.with_init(tx, init)
    return rx.transformation(init, tx.update, inner={"": tx}, hands_on="")


def _may_be_by_rows(part: rx.Part | None) -> bool:
    return part is not None and part.slot is not None and part.slot.by_rows


def _by_rows(name: str, which: Any, x: Any) -> Any:
    try:
        return _each(_one_for_each_row, which, x)
    except (TypeError, ValueError):
        raise ValueError(
            f"`row_states` finds no rows in `{name}`, whose arrays are not those of "
            "the parameters: put `row_states` inside the wrapper that joins them, "
            "such as `flatten`"
        ) from None


def _one_for_each_row(columns: Any, x: Any) -> Any:
    """A slot that has just been made, where all elements of a row are equal."""
    # What is not an array is `None` in a mask.
    if not (columns is None or jax.tree_util.all_leaves([columns])):
        raise TypeError("one array in place of a tree")
    x = rx.dequantize(x) if columns else x
    if not columns or not rx.is_array(x):
        return x
    if not x.size:
        shape = [1 if i in columns else n for i, n in enumerate(x.shape)]
        return jnp.zeros(shape, x.dtype)
    # Not the first column: an axis that is divided over a mesh cannot be indexed.
    return jnp.max(x, tuple(columns), keepdims=True)


@rx.public("wrapper")
def lazy_rows(
    inner: rx.TransformationLike, tables: rx.MaskOrFn = None
) -> rx.GradientTransformationExtraArgs:
    """Skip rows whose gradient is zero, in the parameters and in the state.

        u_i, s_i = inner(g)_i   where g_i has a nonzero element
        u_i = 0, s_i = s_i      elsewhere

    A row of an embedding has a zero gradient in each batch without its token.  Momentum
    and weight decay then do not change the row, and means of squares do not shrink.
    Scalars that all rows share, such as the step count of bias corrections and
    schedules, advance with each step.  A NaN counts as nonzero.

    inner: a transformation that treats each element by itself: most optimizers,
        `row_states`, masks, injected hyperparameters.  Put what measures all gradients,
        such as `clip_by_global_norm`, before `lazy_rows`.  Transformations of other
        libraries are not checked.
    tables: the parameters that this applies to; see `masked`.  By default all with two
        or more axes; in a vector, each element is a row.

    `init` raises a `ValueError` for other transformations, `update` a `TypeError` for
    the codes of `low_bit_states`.
    """
    tx = rx.with_keywords(inner, "`inner` of `lazy_rows`")
    found = ft.cache(lambda: rx.slots_like_params(tx))

    def init(params):
        if isinstance(params, SlotMark):
            return tx.init(params)
        _require_local(inner, found()[0])
        _tables(tables, _whole(params))
        return tx.init(_whole(params))

    def update(updates, state, params=None, **extra_args):
        if rx.holds_codes(state):
            raise TypeError(
                "`lazy_rows` cannot keep the codes of some rows: omit `low_bit_states`"
            )
        gradients = _whole(updates)
        which = _each(_touched, _tables(tables, gradients), gradients)
        u, new = tx.update(gradients, state, _whole(params), **extra_args)
        parts, treedef = found()
        old, now = map(treedef.flatten_up_to, (state, new))
        chosen = treedef.unflatten(
            x if part is None else _each(_row_or, which, x, was)
            for part, x, was in zip(parts, now, old, strict=True)
        )

        def row_or_0(touched, u):
            return _row_or(touched, u, jnp.zeros_like(u)) if rx.is_array(u) else u

        u = rx.keep_dtypes(_each(row_or_0, which, u), gradients)
        u = rx.pack(u, like=updates) if isinstance(updates, rx.Packed) else u
        return u, rx.keep_dtypes(chosen, state)

    return rx.transformation(init, update, inner={"": tx})


def _whole(tree: rx.ArrayTree) -> rx.ArrayTree:
    """A tree whose arrays have rows; a packed tree has none."""
    return tree.unpack() if isinstance(tree, rx.Packed) else tree


def _touched(columns: Any, g: jax.Array) -> jax.Array | None:
    """Which rows have a gradient; `None` where there are no rows."""
    is_table = isinstance(columns, frozenset)
    if not is_table or rx.has_no_gradient(g) or not jnp.ndim(g):
        return None
    return jnp.any(rx.as_array(g) != 0, tuple(columns), keepdims=True)


def _row_or(touched: Any, x: Any, was: Any) -> Any:
    return x if touched is None or not rx.is_array(x) else jnp.where(touched, x, was)


def _require_local(tx: rx.TransformationLike, parts: list[rx.Part | None]) -> None:
    """Raise unless a step of an element depends on that element alone."""
    if not isinstance(tx, rx.Transformation):
        return  # made by another library or the user: trusted
    _require_rules(tx)
    for part in parts:
        if part is not None and part.slot is None:
            raise _refused(part.owner, f"keeps `{part.name}`, which is not a slot")


def _require_rules(tx: rx.TransformationLike) -> None:
    for part in rx.node_of(tx).parts():
        if not isinstance(part, rx.Rule):
            _require_rules_inside(part)
            continue
        name = part.name or part.State.__name__
        if part.leaf_stat or part.global_stat:
            raise _refused(name, "measures all gradients together")
        if not part.elementwise:
            raise _refused(name, "computes with whole arrays")


def _require_rules_inside(tx: rx.TransformationLike) -> None:
    # `inject_hyperparams` makes its transformation in each step, and passes gradients
    # on.
    node = rx.node_of(tx)
    if isinstance(node, rx.Closure) and node.shows is None:
        if node.hands_on is not None:
            return _require_rules(node.callees[node.hands_on])
    raise _refused(node.title, "is not an elementwise rule")


def _refused(name: str, why: str) -> ValueError:
    return ValueError(
        f"`lazy_rows` cannot skip rows in `{name}`, which {why}; put it around the "
        "other parts, as in `chain(clip_by_global_norm(...), lazy_rows(...))`"
    )


def _tables(tables: rx.MaskOrFn, tree: rx.ArrayTree) -> rx.ArrayTree:
    """A tree with the axes within rows for each leaf; `False` where it is no table."""
    leaves, treedef = jax.tree.flatten(tree, is_leaf=rx.is_none)
    ranks = [jnp.ndim(x) if rx.is_array(x) else 0 for x in leaves]
    pairs = zip(ranks, stacks.of_leaves(tree), strict=True)
    axes = [[i for i in range(n) if i not in at] for n, at in pairs]
    if tables is not None and leaves:
        on = rx.selection.resolve_mask(tables, tree, "tables")
    else:
        on = [len(own) > 1 for own in axes]
    pairs = zip(on, axes, strict=True)
    return treedef.unflatten(x and frozenset(own[1:]) for x, own in pairs)


def _each(f: Callable, tree: rx.ArrayTree, *parts: rx.ArrayTree) -> rx.ArrayTree:
    """`f` of each leaf of `tree` and the corresponding parts of other trees."""

    def one(x, at, *rest):
        return x if isinstance(x, rx.MaskedNode) else f(at, x, *rest)

    first, *others = parts
    return jax.tree.map(
        one, first, tree, *others, is_leaf=lambda x: rx.is_absent(x) or is_coded(x)
    )
