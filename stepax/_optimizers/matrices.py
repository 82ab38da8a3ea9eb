"""Treating arrays as stacks of matrices: which axes are rows and columns.

A specification names the row axes and the column axes of each array; the remaining axes
are stack axes.  `None` marks an array that is not a matrix.
"""

import math
import operator as op
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from .._engine import rules as rx
from .._engine.arrays import of_arrays_or_shapes
from .._engine.arrays.placement import is_on_mesh
from .._engine.arrays.stacked import (
    Axes as StackedAxes,
    from_front,
    in_front,
    mapped,
    one_of,
    shape_of_one,
    to_front,
)
from .._engine.trees import stacks
from .._engine.trees.packed import outline


@rx.optax_compatible
class MuonDimensionNumbers(rx.optax.contrib.MuonDimensionNumbers):
    """Which axes of an array W are summed over and kept in x W = y; others are stacked.

    reduction_axis: axis, or axes, that are summed over.
    output_axis: axis, or axes, of the result.
    """

    reduction_axis: int | tuple[int, ...] = 0
    output_axis: int | tuple[int, ...] = 1


DimensionNumbersOrFn: TypeAlias = Any | Callable[[rx.Params], Any] | None


class Axes(NamedTuple):
    """rows, columns: axes of an array, normalized to be nonnegative."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]

    def stack(self, ndim: int) -> list[int]:
        """The axes that are neither rows nor columns."""
        return [i for i in range(ndim) if i not in self.rows + self.columns]

    def shape(self, shape: tuple) -> tuple:
        """The shape of the stack of matrices."""
        stack = [shape[i] for i in self.stack(len(shape))]

        def size(axes):
            return math.prod(shape[i] for i in axes)

        return *stack, size(self.rows), size(self.columns)


_PLAIN = Axes((0,), (1,))


def resolve(
    spec: DimensionNumbersOrFn, tree: rx.ArrayTree, kind: type, what: str
) -> list[Axes | None]:
    """The axes of each leaf, `None` for leaves that are not matrices.

    spec: dimension numbers for all arrays with two or more axes, or anything that
        `select.resolve` accepts with them as labels; `None` means all arrays with
        exactly two axes.
    kind: the class of the dimension numbers.
    what: the name of the argument, for errors.

    Raises a `ValueError` for axes that do not fit, a `TypeError` for other labels.
    """
    tree = outline(tree)
    leaves, treedef = jax.tree.flatten(tree, is_leaf=rx.is_none)
    if spec is None:
        return [_PLAIN if _ndim(x) == 2 else None for x in leaves]
    if isinstance(spec, kind):
        spec = treedef.unflatten(spec if _ndim(x) > 1 else None for x in leaves)
    labels = rx.selection.resolve(spec, tree, what, kind)
    axes = []
    for i, (label, x) in enumerate(zip(labels, leaves, strict=True)):
        if label is None or not (rx.is_array(x) or x is None):
            axes.append(None)
            continue
        try:
            shape = None if x is None else np.shape(rx.as_array(x))
            axes.append(_axes(label, shape, kind))
        except (ValueError, TypeError) as error:
            where = f"`{what}` for {rx.errors.paths(tree)[i]}"
            raise type(error)(f"{where} is {label!r}, {error}") from None
    return axes


def _ndim(x: object) -> int:
    return np.ndim(rx.as_array(x)) if rx.is_array(x) else 0


def _axes(label: Any, shape: tuple | None, kind: type) -> Axes:
    if not isinstance(label, kind):
        raise TypeError(f"expected a `{kind.__name__}` or `None`")
    rows, columns = map(_tuple, label)
    if shape is None:
        return Axes(rows, columns)  # without a gradient there is nothing to do
    used, n = rows + columns, len(shape)
    if not rows or not columns or not all(-n <= i < n for i in used):
        raise ValueError(
            f"expected axes of an array of shape {shape}, one or more for each field"
        )
    if len({i % n for i in used}) < len(used):
        raise ValueError(f"but names an axis of the shape {shape} twice")
    return Axes(tuple(i % n for i in rows), tuple(i % n for i in columns))


def _tuple(axes: Any) -> tuple[int, ...]:
    return tuple(map(op.index, axes if isinstance(axes, tuple | list) else (axes,)))


def to_matrices(x: Any, axes: Axes | None) -> Any:
    """`x` with rows and columns as its last two axes; flattened if not a matrix.

    x: an array; with axes it may be the shape of one.
    """
    if axes is None:
        return jnp.ravel(x)
    if isinstance(x, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(axes.shape(x.shape), x.dtype)
    order = [*axes.stack(x.ndim), *axes.rows, *axes.columns]
    return jnp.transpose(x, order).reshape(axes.shape(x.shape))


def from_matrices(x: jax.Array, axes: Axes | None, shape: tuple) -> jax.Array:
    """The inverse of `to_matrices`: the array of the given shape."""
    if axes is None:
        return x.reshape(shape)
    order = [*axes.stack(len(shape)), *axes.rows, *axes.columns]
    back = [order.index(i) for i in range(len(shape))]
    return jnp.transpose(x.reshape([shape[i] for i in order]), back)


def on_matrices(
    inner: rx.TransformationLike,
    find: Callable,
    slots: tuple[str, ...],
    init: Callable | None = None,
    needs_params: bool = False,
) -> rx.GradientTransformationExtraArgs:
    """Apply `inner`, which takes stacks of matrices, to arrays.

    inner: arrays that are not matrices reach it as vectors.
    find: maps a tree to the axes of its leaves, like `resolve`.
    slots: the fields of the state that are stored in the shapes of the parameters.
    init: a function from the parameters to the first state; that of `inner` if `None`.
    needs_params: whether `inner` receives the parameters as well as the gradients.
    """
    inner = rx.with_extra_args_support(inner)

    def update(updates, state, params=None, **extra_args):
        gradients, axes = rx.Gradients(updates, None), find(updates)
        stacked = stacks.of_leaves(updates)
        shapes = [
            None if x is None else shape_of_one(x.shape, at)
            for x, at in zip(gradients.leaves, stacked, strict=True)
        ]

        def moved(tree, name, move):
            xs = zip(
                gradients.leaves_of(tree, name),
                gradients.leaves,
                stacked,
                axes,
                shapes,
                strict=True,
            )
            return gradients.treedef.unflatten(
                x if rx.has_no_gradient(g) else move(x, *where) for x, g, *where in xs
            )

        def move_state(state, move):
            found = state._asdict()
            return state._replace(**{k: moved(found[k], k, move) for k in slots})

        def to(x, at, axes, shape):
            return _to_front(x, at, axes)

        def back(x, at, axes, shape):
            return from_front(
                mapped(lambda x: from_matrices(x, axes, shape), at)(x), at
            )

        matrices = moved(updates, "updates", to)
        # They are sharded like the updates.
        is_there = any(
            isinstance(g, jax.Array) and is_on_mesh(g) for g in gradients.leaves
        )
        is_read = needs_params or (params is not None and is_there)
        ps = moved(params, "params", to) if is_read else None
        old = move_state(state, to)
        with stacks.known(matrices, list(map(in_front, stacked))):
            us, new = inner.update(matrices, old, ps, **extra_args)
        return moved(us, "updates", back), move_state(new, back)

    def first(params):
        find(params)  # which raises for axes that do not fit
        return inner.init(params)

    return rx.transformation(*rx.by_leaf(init or first, update), inner={"": inner})


def _to_front(x: jax.Array, at: StackedAxes, axes: Axes | None) -> jax.Array:
    """`to_matrices` of each array of a stack, whose axes are then in front."""

    def move(x):
        return mapped(lambda x: to_matrices(x, axes), at)(to_front(x, at))

    return of_arrays_or_shapes(move, x)


def only_matrices(
    rule: rx.Rule, spec: DimensionNumbersOrFn, name: str
) -> rx.GradientTransformationExtraArgs:
    """Apply a rule for matrices, and for stacks of them, to arrays.

    Its slots that are not `alike` are made from the parameters as matrices.

    spec: which axes are rows and columns; see `resolve`.
    name: the name of the optimizer, for errors.
    """

    def find(tree):
        axes = resolve(spec, tree, MuonDimensionNumbers, _WHAT)
        leaves = jax.tree.leaves(outline(tree), is_leaf=rx.is_none)
        for i, (found, x) in enumerate(zip(axes, leaves, strict=True)):
            if found is None and rx.is_trainable(x):
                raise ValueError(
                    f"`{name}` trains matrices, but the array at "
                    f"{rx.errors.paths(tree)[i]} has shape "
                    f"{np.shape(rx.as_array(x))}: name its rows and columns in "
                    f"`{_WHAT}`, or give it to another optimizer with `partition`"
                )
        return axes

    def init(params):
        ps, treedef = jax.tree.flatten(params, is_leaf=rx.is_none)
        ps = [rx.as_array(p) if rx.is_trainable(p) else None for p in ps]
        stacked = stacks.of_leaves(params)
        rows = zip(ps, stacked, find(params), strict=True)
        fronts = list(map(in_front, stacked))
        matrices = [None if p is None else _to_front(p, at, x) for p, at, x in rows]
        ones = list(map(one_of, matrices, fronts))
        state = {k: make(params) for k, make in rule.scalars.items()}
        for k, slot in rule.slots.items():
            where = (ps, stacked) if slot.alike else (matrices, fronts)
            column = rule.column(slot, where[0], ones, axes=where[1])
            state[k] = treedef.unflatten(column)
        return rule.State(**state)

    alike = tuple(k for k, slot in rule.slots.items() if slot.alike)
    return on_matrices(
        rx.build(rule.made_by(name, rule.origin)), find, alike, init, rule.needs_params
    )


def per_output(p: jax.Array) -> jax.Array:
    """Zeros in float32 or wider, one for each output, (..., outputs)."""
    # Not for an integer, which raises as long as nothing beside it is wider.
    dtype = rx.scalar_dtype(p) if rx.is_inexact(p) else p.dtype
    return jnp.zeros((*p.shape[:-2], p.shape[-1]), dtype)


_WHAT = "weight_dimension_numbers"
