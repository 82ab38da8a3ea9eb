"""GaLore: run an optimizer on low-rank projections of matrix gradients.

Zhao et al., 2024, GaLore: Memory-Efficient LLM Training by Gradient Low-Rank Projection
(arXiv:2403.03507), Algorithm 2.

Difference from the paper: the longer side of a matrix is projected rather than the
shorter, which makes the state smaller and the projector larger.
Differences from Optax: singular vectors of float64 gradients are computed in float64;
the base optimizer sees the parameters, projected like the gradients; `None` and empty
arrays are accepted; derivatives treat the projector as a constant.
"""

import functools as ft
import itertools as it
import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._engine import rules as rx
from .._engine.arrays.numerics import safe_increment, upcast
from .._engine.arrays.placement import along_axis
from .._engine.arrays.stacked import (
    Axes as StackAxes,
    from_front,
    in_front,
    looped,
    mapped,
    shape_of_stack,
    to_front,
)
from .._engine.factories.ranges import whole
from .._engine.step.turns import divided, since_turn
from .._engine.trees import stacks
from .._engine.trees.packed import outline
from .._transforms.decay import descend
from . import matrices
from .adam import scale_by_adam
from .matrices import DimensionNumbersOrFn


PAPER = "arXiv:2403.03507"
_RANGES = {"rank": rx.AT_LEAST_1, "update_proj_gap": rx.Range(1, is_cap=True)}


@rx.optax_compatible
class GaLoreDimensionNumbers(rx.optax.contrib.GaLoreDimensionNumbers):
    """Which axes of an array are the rows and columns of a matrix; every axis is one.

    reduction_axis: axis, or axes, of the rows.
    output_axis: axis, or axes, of the columns.
    """

    reduction_axis: int | tuple[int, ...] = 0
    output_axis: int | tuple[int, ...] = 1


Side = Literal["long", "short"]


@rx.optax_compatible
class GaLoreState(rx.optax.contrib.GaLoreState):
    """count: steps taken, a scalar.

    base_optimizer_state: state of the base optimizer, for the projections.
    projector: orthonormal columns, (projected side, rank), for each matrix; shape
        (0, 0) for arrays that are not projected.
    """

    count: jax.Array
    base_optimizer_state: rx.OptState
    projector: rx.ArrayTree


# The base optimizer sees stacks with their stack axes in front.
stacks.register("GaLoreState", {"count"}, {"base_optimizer_state", "projector"})


@rx.public(paper=PAPER, ranges=_RANGES)
def scale_by_galore(
    rank: int = 128,
    update_proj_gap: rx.ArrayLike = 200,
    scale: rx.ArrayLike = 1.0,
    base_optimizer: rx.TransformationLike | None = None,
    weight_dimension_numbers: DimensionNumbersOrFn = None,
    *,
    side: Side = "long",
    stagger: bool = False,
) -> rx.GradientTransformationExtraArgs:
    """Run an optimizer on gradients projected onto a few directions.

        P = the leading singular vectors of g,   every `update_proj_gap` steps
        u = scale P base(Pᵀ g),   or scale base(g P) Pᵀ for wide matrices

    Arrays that are not matrices reach the base optimizer unchanged, and `scale` does
    not apply to them.

    rank: number of directions, at least 1 and at most the shorter side.
    update_proj_gap: steps between updates of the projector, at least 1; only the
        first for infinity.
    scale: factor of the updates of matrices.
    base_optimizer: `scale_by_adam` by default; receives all keywords of `update`.
    weight_dimension_numbers: `GaLoreDimensionNumbers` for all arrays, a tree of them
        with `None` for arrays that are not matrices, a function from the gradients to
        such a tree, or path patterns as in `partition`.  By default, arrays with two
        axes are matrices.
    side: which side of a matrix is projected, "long", or "short" as in the paper.
    stagger: whether matrices take turns, so that no step renews all projectors.

    In bfloat16 `nu` stalls: keep it in float32 with `with_state_dtypes`.

    Raises a `ValueError` for an unknown `side`, and for axes that do not fit an array.
    """
    rx.require_one_of("side", side, ("long", "short"))
    base = scale_by_adam() if base_optimizer is None else base_optimizer
    base = rx.with_keywords(base, "`base_optimizer` of `scale_by_galore`")
    views = ft.partial(_views, weight_dimension_numbers, rank, side)

    def init(params):
        ps, treedef = jax.tree.flatten(params, is_leaf=rx.is_none)
        found, at = views(params), stacks.of_leaves(params)
        low = treedef.unflatten(_each(found, at, _first, _in_front(ps, at)))
        projector = treedef.unflatten(map(_first_projector, ps, found, at))
        with stacks.known(low, list(map(in_front, at))):
            inner = base.init(low)
        return GaLoreState(jnp.zeros([], jnp.int32), inner, projector)

    def update(updates, state, params=None, **extra_args):
        rx.errors.require_state("scale_by_galore", GaLoreState, state)
        gradients, found = rx.Gradients(updates, params), views(updates)
        at = stacks.of_leaves(updates)
        gs = _in_front(gradients.leaves, at)
        each = ft.partial(_each, found, at)
        old = gradients.leaves_of(state.projector, "projector")
        renew = _each_in_turn if stagger else _all_at_once
        every = jnp.asarray(whole(update_proj_gap))
        # Explicit axes are gathered once, for the projector and for the projection.
        wholes = each(_gathered, gs)
        kept = renew(state.count, every, found, at, old, wholes)
        projector = each(_whole, kept, gs)

        def project(xs):
            return gradients.treedef.unflatten(each(_project, xs, projector))

        inner, ps = state.base_optimizer_state, None
        if params is not None:
            ps = project(each(_gathered, _in_front(gradients.params, at)))
        low = project(wholes)
        with stacks.known(low, list(map(in_front, at))):
            low, inner = base.update(low, inner, ps, **extra_args)
        low = gradients.leaves_of(low, "the updates of `base_optimizer`")
        us = each(ft.partial(_expand, scale), low, projector, gs)
        us = _in_front(us, at, from_front)
        us, kept = map(gradients.treedef.unflatten, (us, kept))
        return us, GaLoreState(safe_increment(state.count), inner, kept)

    return rx.transformation(
        *rx.by_leaf(init, update), inner={"base_optimizer_state": base}
    )


class _View(NamedTuple):
    """How an array is projected.

    shape: shape of the matrix.  is_left: whether the projector multiplies from the
        left.
    """

    axes: matrices.Axes
    shape: tuple[int, int]
    is_left: bool
    rank: int


def _views(
    spec: DimensionNumbersOrFn, rank: int, side: Side, tree: rx.ArrayTree
) -> list[_View | None]:
    what = "weight_dimension_numbers"
    tree = outline(tree)
    leaves = jax.tree.leaves(tree, is_leaf=rx.is_none)
    found = matrices.resolve(spec, tree, GaLoreDimensionNumbers, what)
    views = []
    for i, (axes, x) in enumerate(zip(found, leaves, strict=True)):
        is_matrix = (
            axes is not None
            and rx.is_trainable(x)
            and jnp.issubdtype(jnp.result_type(x), jnp.inexact)
        )
        if axes is None or not is_matrix or 0 in x.shape:
            views.append(None)
            continue
        if axes.stack(x.ndim):
            raise ValueError(
                f"`{what}` for {rx.errors.paths(tree)[i]} omits the axes "
                f"{axes.stack(x.ndim)} of the shape {x.shape}, but must name all axes"
            )
        rows, columns = axes.shape(x.shape)
        is_left = (rows >= columns) == (side == "long")
        views.append(_View(axes, (rows, columns), is_left, min(rank, rows, columns)))
    return views


def _in_front(xs: list, at: list, move: Callable = to_front) -> list:
    """Arrays with their stack axes in front."""
    return [move(x, axes) for x, axes in zip(xs, at, strict=True)]


def _each(
    views: list,
    at: list,
    f: Callable,
    xs: list,
    *others: list,
    over: Callable = mapped,
) -> list:
    """`f(view, x, *others)` for each array with a view; other arrays as they are.

    at: the stack axes of the arrays, which are in front.
    """
    rows = zip(views, at, xs, *others, strict=True)
    return [
        x if view is None else over(ft.partial(f, view), axes)(x, *row)
        for view, axes, x, *row in rows
    ]


def _all_at_once(count, every, views, at, old, gs):
    """The projectors of all matrices, which are renewed every few steps."""
    return rx.branch(
        rx.once_in(count, every),
        lambda: _each(views, at, _subspace, old, gs),
        lambda: old,
    )


def _each_in_turn(count, every, views, at, old, gs):
    """As `_all_at_once`, but each matrix is renewed at its own step of a cycle."""
    sizes = [view.shape if view else (0, 0) for view in views]
    stack = [np.shape(x)[: len(axes)] for x, axes in zip(old, at, strict=True)]
    numbers = list(map(math.prod, stack))
    costs = [[min(x) * math.prod(x)] * n for x, n in zip(sizes, numbers, strict=True)]
    starts = iter([x.start for x in divided(None, [*it.chain(*costs)])])
    turns = [
        np.reshape([*it.islice(starts, n)], shape)
        for n, shape in zip(numbers, stack, strict=True)
    ]

    def one(view, was, g, turn):
        due = (count == 0) | rx.once_in(since_turn(count, every, turn), every)
        return rx.branch(due, lambda: _subspace(view, was, g), lambda: was)

    return _each(views, at, one, old, gs, turns, over=looped)


def _gathered(view: _View, x: jax.Array) -> jax.Array:
    return rx.replicated(x)


def _first(view: _View, p: jax.Array) -> jax.Array:
    """The first projection, sharded as `_project` leaves later ones."""
    rows, columns = view.shape
    shape = (view.rank, columns) if view.is_left else (rows, view.rank)
    zeros = jnp.zeros(shape, jnp.result_type(p))
    if not _is_plain(view):
        return rx.whole_on_mesh_of(p, zeros)
    return along_axis(p, zeros, 1 if view.is_left else 0)


def _placed(view: _View, x: jax.Array, low: jax.Array) -> jax.Array:
    return low if _is_plain(view) else rx.whole_on_mesh_of(x, low)


def _is_plain(view: _View) -> bool:
    """Whether the matrix is the array, whose sharding the projection then shares."""
    return view.axes.rows == (0,) and view.axes.columns == (1,)


def _first_projector(
    p: rx.ArrayLike, view: _View | None, at: StackAxes
) -> jax.Array | None:
    if not rx.is_trainable(p):
        return None
    side = view.shape[0 if view.is_left else 1] if view else 0
    shape = *shape_of_stack(np.shape(p), at), side, view.rank if view else 0
    p = jnp.asarray(p)
    return rx.whole_on_mesh_of(p, jnp.zeros(shape, p.dtype))


def _whole(view: _View, x: jax.Array, g: jax.Array) -> jax.Array:
    return rx.whole_on_mesh_of(g, x)


@ft.partial(jax.jit, static_argnums=0)
def _subspace(view: _View, projector: jax.Array, g: jax.Array) -> jax.Array:
    """The leading singular vectors of g, in the dtype of the projector."""
    # The derivative of singular vectors is infinite where singular values coincide.
    g = matrices.to_matrices(upcast(jax.lax.stop_gradient(g)), view.axes)
    u, _, vh = jnp.linalg.svd(g, full_matrices=False)
    directions = (u if view.is_left else jnp.conj(vh.T))[:, : view.rank]
    new = rx.with_sharding_of(projector, rx.whole_on_mesh_of(g, directions))
    return new.astype(projector.dtype)


@ft.partial(jax.jit, static_argnums=0)
@rx.promote_freely
def _project(view: _View, x: jax.Array, projector: jax.Array) -> jax.Array:
    """The projection of x; not rounded to half precision, where sums may overflow."""
    # With automatic axes each device multiplies its own part: it moves the projection
    # if x is sharded along the side that is projected, and nothing otherwise.
    wide, m = upcast(projector), matrices.to_matrices(upcast(x), view.axes)
    return _placed(view, x, jnp.conj(wide.T) @ m if view.is_left else m @ wide)


@ft.partial(jax.jit, static_argnums=1)
@rx.promote_freely
def _expand(
    scale: rx.ArrayLike, view: _View, low: jax.Array, projector: jax.Array, g: jax.Array
) -> jax.Array:
    """The update for g, from the update for its projection."""
    low, wide = _placed(view, g, upcast(low)), upcast(projector)
    u = wide @ low if view.is_left else low @ jnp.conj(wide.T)
    factor = jnp.asarray(scale, u.dtype)
    u = rx.with_sharding_of(g, matrices.from_matrices(u, view.axes, g.shape))
    return (factor * u).astype(g.dtype)


@rx.public("optimizer", paper=PAPER, ranges=_RANGES)
def galore(
    learning_rate: rx.ScalarOrSchedule | None,
    rank: int = 128,
    update_proj_gap: rx.ArrayLike = 200,
    scale: rx.ArrayLike = 1.0,
    base_optimizer: rx.TransformationLike | None = None,
    weight_decay: rx.ScalarOrSchedule = 0.0,
    mask: rx.MaskOrFn = None,
    weight_dimension_numbers: DimensionNumbersOrFn = None,
    *,
    side: Side = "long",
    weight_decay_mask: rx.MaskOrFn = None,
    stagger: bool = False,
) -> rx.GradientTransformationExtraArgs:
    """GaLore (Zhao et al., 2024, arXiv:2403.03507):
    p = p - learning_rate (u + weight_decay p), with u the output of `scale_by_galore`.

    learning_rate, weight_decay: scalars or schedules.
    mask, weight_decay_mask: parameters to decay (two aliases); see `masked`.
    Other arguments: those of `scale_by_galore`.
    """
    direction = rx.pass_on(scale_by_galore, locals())
    return descend(direction, learning_rate, weight_decay, mask, weight_decay_mask)
