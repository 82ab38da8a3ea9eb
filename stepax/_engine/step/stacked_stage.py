"""The stage on whole matrices for arrays that are stacks of matrices.

A stack is traced once, as the body of a loop, in which a branch that is taken once
every few steps stays a branch.  On a mesh its matrices are divided among the devices
along the stack axis, so a stack that is sharded along it stays where it is.
"""

import functools as ft
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ..arrays.placement import along_first, axis_names, free_axes, number_of_devices
from ..arrays.stacked import Axes, from_front, shape_of_stack, to_front
from ..xla import by_platform, varying
from .apart import by_way_of, in_explicit, on_parts
from .batched import (
    STACK,
    Batched,
    Row,
    in_groups,
    is_stacked,
    placed_like,
    run_group,
)
from .turns import Turns


def map_stacks(
    one: Callable, ctx: object, rows: Sequence[Row], how: Batched, axes: Sequence[Axes]
) -> list[Row]:
    """As `map_batched`, for rows of which some are stacks along `axes`."""
    stacks = list(map(_stack, rows, axes))

    def run(at, turns):
        made = _group(one, ctx, [stacks[i] for i in at], how, turns)
        return [
            placed_like(rows[i], _unstack(stack, rows[i], axes[i]))
            for i, stack in zip(at, made, strict=True)
        ]

    return in_groups(run, stacks, how, lead=1, kind=_kind_of_one)


def _stack(row: Row, axes: Axes) -> Row:
    """A row with one axis in front of all arrays, along which its matrices follow."""

    def merged(x):
        n = len(axes)
        return x.reshape(math.prod(x.shape[:n]), *x.shape[n:])

    moved = jax.tree.map(lambda x: to_front(x, axes), (row.parts, row.param))
    (parts, param), wholes = jax.tree.map(merged, (moved, row.wholes))
    return Row(parts, wholes, param=param)


def _unstack(stack: Row, like: Row, axes: Axes) -> Row:
    lengths = shape_of_stack(like.parts[0].shape, axes)
    parts, wholes = jax.tree.map(
        lambda x: x.reshape(*lengths, *x.shape[1:]), (stack.parts, stack.wholes)
    )
    return Row(tuple(from_front(x, axes) for x in parts), wholes)


def _kind_of_one(x: jax.Array) -> tuple:
    kind = jax.typeof(x)
    return kind.shape[1:], kind.dtype, tuple(kind.sharding.spec)[1:], varying(kind)


def _number(stacks: Sequence[Row]) -> int:
    """The number of matrices in some stacks."""
    return sum(len(stack.parts[0]) for stack in stacks)


def _group(
    one: Callable, ctx: object, stacks: list[Row], how: Batched, turns: Turns
) -> list[Row]:
    """`one(ctx, row)` for each matrix of some stacks of matrices of equal shapes."""
    number, u = _number(stacks), stacks[0].parts[0]
    if not free_axes(u) and not how.split.entries:
        made, first = [], 0
        for stack in stacks:
            at = range(first, first := first + _number([stack]))
            made.append(_in_loop(one, ctx, stack, how, turns, at, number))
        return made
    lengths = {len(stack.parts[0]) for stack in stacks}
    is_even = len(lengths) == 1 and len(u) % number_of_devices(u) == 0
    if is_even and not how.split.entries and is_stacked(stacks[0], number, how):
        return _on_mesh(one, ctx, stacks, turns)
    singles = [
        jax.tree.map(lambda x, i=i: x[i], stack)
        for stack in stacks
        for i in range(_number([stack]))
    ]
    made = iter(run_group(one, ctx, singles, how, turns))
    return [
        jax.tree.map(lambda *xs: jnp.stack(xs), *[next(made) for _ in stack.parts[0]])
        for stack in stacks
    ]


def _in_loop(
    one: Callable,
    ctx: object,
    stack: Row,
    how: Batched,
    turns: Turns,
    at: Sequence[int],
    number: int,
) -> Row:
    """`one(ctx, row)` for each matrix of a stack; on a GPU for several at a time.

    at: the indices of its matrices among all of its group.
    number: how many these are.
    """
    if turns.at_turn is not None:
        own = turns.stack(ctx, at, number)
        return jax.lax.map(lambda pair: one(*pair), (own, stack))
    in_turn = ft.partial(jax.lax.map, ft.partial(one, ctx))
    if not how.is_product:
        return in_turn(stack)
    most = max(1, STACK // max(1, math.prod(stack.parts[0].shape[1:])))
    return by_platform(in_turn, stack, gpu=ft.partial(in_turn, batch_size=most))


def _on_mesh(one: Callable, ctx: object, stacks: list[Row], turns: Turns) -> list[Row]:
    """Stacks of equal lengths, divided among the devices along the stack axis."""

    def local(ctx, xs):
        # The matrices of all stacks one after another.
        flat = [x.reshape(-1, *x.shape[2:]) for x in xs]
        made = turns.mapped(one, ctx)(treedef.unflatten(flat))
        return [x.reshape(-1, len(stacks), *x.shape[1:]) for x in jax.tree.leaves(made)]

    u, treedef = stacks[0].parts[0], jax.tree.structure(stacks[0])
    columns = zip(*map(jax.tree.leaves, stacks), strict=True)
    # Joined along a second axis, so that one collective moves all stacks, and none of
    # them along the first axis.
    joined = [jnp.stack(xs, 1) for xs in columns]
    mesh, specs = jax.typeof(u).sharding.mesh, [jax.typeof(x).sharding for x in joined]
    apart = NamedSharding(mesh, PartitionSpec(along_first(u)))
    every = on_parts(local, ctx, apart)
    if AxisType.Explicit in mesh.axis_types:
        made = in_explicit(every, joined, specs, apart)
    else:
        made = _in_auto(every, joined, apart, stacks[0].param is not None)
    shape = jax.tree.structure(Row(stacks[0].parts, stacks[0].wholes))
    return [shape.unflatten(x[:, i] for x in made) for i in range(len(stacks))]


def _in_auto(
    every: Callable, stacks: list, apart: NamedSharding, is_read: bool
) -> list:
    """`every` of stacks that are divided, by automatic axes, and moved back.

    is_read: whether the last one is of the parameters.
    """
    # XLA moves one mesh axis at a time, and otherwise gathers the whole stack.  Slots
    # are where they are needed.
    names, last = axis_names(apart.spec[0]), len(stacks) - 1
    free = [PartitionSpec.UNCONSTRAINED] * (stacks[0].ndim - 1)
    steps = [PartitionSpec(names[: n + 1], *free) for n in range(len(names) - 1)]
    path = [*(NamedSharding(apart.mesh, spec) for spec in steps), apart]
    moves = [i == 0 or (is_read and i == last) for i in range(len(stacks))]
    pairs = zip(stacks, moves, strict=True)
    u, *slots = every([by_way_of(x, path if on else [apart]) for x, on in pairs])
    return [by_way_of(u, path[-2::-1]), *slots]
