"""Stages on whole matrices, distributed over devices matrix by matrix.

On a matrix with sharded rows, every product requires a collective.  So matrices of one
shape are stacked, and the stack is sharded: each matrix is moved to one device as a
whole, and moved back at the end.  Its slots move with it, joined into one array: a
group of matrices takes two collectives each way, regardless of the number of slots.
"""

import functools as ft
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ..arrays.joined import Joined, grouped
from ..arrays.placement import (
    axis_names,
    axis_to_spread,
    free_axes,
    number_of_devices,
    replicated,
    shard_like,
    shared_like,
    spread_over_mesh_of,
    whole_on_mesh_of,
    with_sharding_of,
)
from ..arrays.stacked import Axes
from ..base import ArrayTree
from ..xla import by_platform
from .apart import by_way_of, in_explicit, on_parts
from .array_split import ArraySplit, padded_stack
from .turns import Turns, cubes, divided


# The largest number of elements of a stack of matrices that a GPU computes at once:
# from some millions on its products do not become faster.
STACK = 2**26

Sharding: TypeAlias = Literal["auto", "stack", "none"]


class Row(NamedTuple):
    """The inputs of a stage for one matrix.

    parts: the matrix, and the slots of its shape; split like it inside `shard_map`.
    wholes: the other slots, which may be trees.
    home: an array whose sharding the new matrix takes; the old matrix if `None`.
    param: the parameter, split like the matrix; `None` if the stage does not read it.
    """

    parts: tuple[jax.Array, ...]
    wholes: tuple[ArrayTree, ...] = ()
    home: jax.Array | None = None
    param: jax.Array | None = None


@dataclass(frozen=True)
class Batched:
    """A stage of a rule that follows `leaf` and works on whole arrays.

    apply: (u, ctx, *slots) -> (u, *slots), of one array, or (u, p, ctx, *slots) -> the
        same if `needs_params`.  It runs under `jax.vmap`, with the same `ctx` for all,
        so that a `lax.cond` on it remains a branch: work that is done once every few
        steps costs nothing in between.  With `at_turn` it runs on the arrays one by one
        instead, as their `ctx` differ.
    wants: a function from an array to whether the stage applies to it.
    slots: the names of the slots that `apply` takes and returns.
    sharding: "stack" stacks arrays of one shape and shards the stack over their mesh;
        "auto" does so if they are on a mesh and there are at least two; "none" leaves
        the sharding of each as it is.
    split: how arrays are split inside `shard_map`.
    needs_params: whether `apply` takes the parameter; then `needs_params` of its rule
        must be true.
    at_turn: (ctx, turn) -> the `ctx` of one array, whose position in a cycle of steps
        is `turn`, a number in [0, 1), so that periodic work is spread over the cycle;
        `None` if all arrays share one `ctx`.
    cost: a function from the shape of an array to the cost of its periodic work, in any
        unit, by which the cycle is divided.  By default the sum of the cubes of its
        sides.
    is_product: whether `apply` consists of matrix products, so that a GPU takes several
        arrays of one shape at once: those of a small matrix do not fill it.

    >>> stage = stepax.rules.Batched(
    ...     lambda u, ctx: (u / jnp.linalg.norm(u),), wants=lambda p: p.ndim == 2
    ... )
    """

    apply: Callable
    wants: Callable[[jax.Array], bool]
    slots: tuple[str, ...] = ()
    sharding: Sharding = "auto"
    split: ArraySplit = ArraySplit(None)
    needs_params: bool = False
    at_turn: Callable | None = None
    cost: Callable[[tuple[int, ...]], float] = cubes
    is_product: bool = False

    def places(
        self, slot: Any, arrays: Sequence, stacks: Sequence[tuple[Axes, int]]
    ) -> list[Callable | None]:
        """For each array a function (p, x) -> `x` that places its slot on a mesh.

        slot: a `Slot`.
        arrays: the arrays of a tree, `None` for leaves that are not trained; one of
            each stack.
        stacks: the axes of each stack, and the number of its arrays.
        """
        if self.split.entries:
            # Inside `shard_map` a device has arrays that are not split in full.
            return [shard_like if slot.alike else whole_on_mesh_of] * len(arrays)
        if slot.in_leaf:
            put = shared_like if slot.is_array else None
        else:
            put = spread_over_mesh_of
        if put is None:
            return [None] * len(arrays)
        is_spread = slot.is_spread and not slot.in_leaf
        pairs = zip(self._divides(arrays, [n for _, n in stacks]), stacks, strict=True)
        places = []
        for on, (at, _) in pairs:
            # Slots of a stack are divided along the stack.
            first = None if not at else at[0] if slot.is_array else 0
            places.append(ft.partial(put, at=first) if on or is_spread else None)
        return places

    def _divides(self, arrays: Sequence, numbers: Sequence[int]) -> list[bool]:
        """Which arrays are stacked with others of their shape, and so distributed."""
        if self.sharding == "none":
            return [False] * len(arrays)
        # Python's integers are parameters, too.
        kinds = [
            (jnp.shape(x), jnp.result_type(x))
            if x is not None and jnp.ndim(x) > 0 and self.wants(x)
            else None
            for x in arrays
        ]
        number: Counter = Counter()
        for kind, n in zip(kinds, numbers, strict=True):
            number[kind] += n
        least = 1 if self.sharding == "stack" else 2
        return [kind is not None and number[kind] >= least for kind in kinds]


def map_batched(
    one: Callable[[object, Row], Row], ctx: object, rows: Sequence[Row], how: Batched
) -> list[Row]:
    """`one(ctx, row)` for each row, with rows of one shape computed together."""

    def run(at, turns):
        return run_group(one, ctx, [rows[i] for i in at], how, turns)

    return in_groups(run, rows, how)


def in_groups(
    run: Callable,
    rows: Sequence[Row],
    how: Batched,
    lead: int = 0,
    kind: Callable = jax.typeof,
) -> list[Row]:
    """The new rows, which `run(indices, turns)` returns for those of each kind.

    lead: how many axes of a row come before those of a matrix.
    kind: of an array, by default its shape, dtype and explicit sharding.
    """

    def kinds(i):
        leaves, treedef = jax.tree.flatten(rows[i])
        return treedef, *map(kind, leaves)

    def cost(at):
        number = sum(math.prod(rows[i].parts[0].shape[:lead]) for i in at)
        each = math.ceil(number / _devices(rows[at[0]], number, how))
        return each * how.cost(how.split.shape(rows[at[0]].parts[0])[lead:])

    groups, new = list(grouped(range(len(rows)), kinds).values()), list(rows)
    turns = [Turns(None)] * len(groups)
    if how.at_turn is not None:
        turns = divided(how.at_turn, list(map(cost, groups)))
    for at, turn in zip(groups, turns, strict=True):
        for i, row in zip(at, run(at, turn), strict=True):
            new[i] = row
    return new


def _devices(row: Row, number: int, how: Batched) -> int:
    """The number of devices over which rows like this one are distributed."""
    if not is_stacked(row, number, how):
        return 1
    return how.split.number if how.split.entries else number_of_devices(row.parts[0])


def is_stacked(row: Row, number: int, how: Batched) -> bool:
    is_spread = number > 1 and bool(free_axes(row.parts[0]) or how.split.entries)
    return how.sharding == "stack" or (how.sharding == "auto" and is_spread)


def run_group(
    one: Callable, ctx: object, rows: list[Row], how: Batched, turns: Turns
) -> list[Row]:
    """`one(ctx, row)` for each of some rows of equal shapes."""
    names, split = free_axes(rows[0].parts[0]), how.split
    if not is_stacked(rows[0], len(rows), how):
        return _each(one, ctx, rows, how, turns)
    if split.entries:
        made = _in_shard_map(one, ctx, rows, split, turns)
    elif names:
        made = _on_mesh(one, ctx, rows, names, turns)
    else:
        made = _in_stack(turns.mapped(one, ctx), rows)
    return list(map(placed_like, rows, made))


def _each(
    one: Callable, ctx: object, rows: list[Row], how: Batched, turns: Turns
) -> list[Row]:
    """`one(ctx, row)` for each row, where it is; on a GPU for several at a time."""

    def alone(ctx, rows):
        own = turns.contexts(ctx, len(rows))
        pairs = zip(own, rows, strict=True)
        return [_alone(one, x, row, how.split) for x, row in pairs]

    def in_stacks(ctx, rows):
        parts = np.array_split(np.arange(len(rows)), number)
        many = turns.mapped(one, ctx)
        return [x for part in parts for x in _in_stack(many, [rows[i] for i in part])]

    number = max(1, math.ceil(sum(row.parts[0].size for row in rows) / STACK))
    is_here = not (free_axes(rows[0].parts[0]) or how.split.entries)
    if how.sharding == "none" or not (
        how.is_product and is_here and number < len(rows)
    ):
        return alone(ctx, rows)
    return by_platform(alone, ctx, rows, gpu=in_stacks)


def _in_stack(many: Callable, rows: list[Row]) -> list[Row]:
    stack = many(jax.tree.map(lambda *xs: jnp.stack(xs), *rows))
    return [jax.tree.map(lambda x, i=i: x[i], stack) for i in range(len(rows))]


def placed_like(row: Row, made: Row) -> Row:
    _, *slots = row.parts
    like = Row((_home(row), *slots), row.wholes)
    return jax.tree.map(with_sharding_of, like, made)


def _moved(row: Row) -> jax.Array:
    """The matrix, with the parameter if that is read."""
    u = row.parts[0]
    if row.param is None:
        return u
    return jnp.stack([u, with_sharding_of(u, row.param)])


def _home(row: Row) -> jax.Array:
    return row.parts[0] if row.home is None else row.home


def _alone(one: Callable, ctx: object, row: Row, split: ArraySplit) -> Row:
    parts, param = jax.tree.map(split.whole, (row.parts, row.param))
    made = one(ctx, jax.tree.map(replicated, Row(parts, row.wholes, param=param)))
    u, *alike = (split.mine(x, row.parts[0]) for x in made.parts)
    if not split.entries and (row.wholes or alike):
        # XLA shards results like the slots that they are computed from, even along mesh
        # axes over which the matrix is replicated; so they are gathered.
        u = whole_on_mesh_of(row.parts[0], u)
    return placed_like(row, Row((u, *alike), made.wholes))


def _in_shard_map(
    one: Callable, ctx: object, rows: list[Row], split: ArraySplit, turns: Turns
) -> list[Row]:
    # Every device has slots of other shapes in full, so they are not split.
    joined = JoinedSlots(rows[0].wholes, 1)

    def one_joined(ctx, parts, wholes):
        param = parts[-1] if is_read else None
        parts = parts[:-1] if is_read else parts
        made = one(ctx, Row(parts, joined.split(wholes), param=param))
        return made.parts, joined.join(made.wholes)

    is_read = rows[0].param is not None
    beside = [(row.param,) if is_read else () for row in rows]
    matrices = [(*row.parts, *p) for row, p in zip(rows, beside, strict=True)]
    parts = list(zip(*matrices, strict=True))
    wholes = list(zip(*(joined.join(row.wholes) for row in rows), strict=True))
    parts, wholes = split.deal(turns.mapped(one_joined, ctx), parts, wholes)
    return [
        Row(tuple(x[i] for x in parts), joined.split([x[i] for x in wholes]))
        for i in range(len(rows))
    ]


def _on_mesh(
    one: Callable, ctx: object, rows: list[Row], names: tuple[str, ...], turns: Turns
) -> list[Row]:
    """`one(ctx, row)` for each row, each on one of the devices."""
    (u, *_), first = rows[0].parts, rows[0]

    def slots(row):
        return (row.parts[1:], row.wholes)

    joined = JoinedSlots(slots(first), number_of_devices(u))

    def one_joined(ctx, u, *parts):
        alike, wholes = joined.split(list(parts))
        u, param = (u, None) if first.param is None else u
        made = one(ctx, Row((u, *alike), wholes, param=param))
        return made.parts[0], *joined.join(slots(made))

    given = [[_moved(row), *joined.join(slots(row))] for row in rows]
    stacks = [padded_stack(x, joined.n) for x in zip(*given, strict=True)]
    mesh = jax.typeof(u).sharding.mesh
    apart = NamedSharding(mesh, PartitionSpec(names))
    many = on_parts(lambda ctx, xs: turns.mapped(one_joined, ctx)(*xs), ctx, apart)
    if AxisType.Explicit in mesh.axis_types:
        specs = [jax.typeof(x).sharding.spec for x in stacks]
        specs[0] = PartitionSpec(None, *jax.typeof(_home(first)).sharding.spec)
        before = [NamedSharding(mesh, spec) for spec in specs]
        stacks = in_explicit(many, stacks, before, apart)
    else:
        stacks = _auto(many, stacks, joined.specs(names), apart)
    new = []
    for i in range(len(rows)):
        alike, wholes = joined.split([x[i] for x in stacks[1:]])
        new.append(Row((stacks[0][i], *alike), wholes))
    return new


def _auto(
    many: Callable, stacks: list, specs: list[PartitionSpec], apart: NamedSharding
) -> list:
    """`many` of stacks that are distributed and moved back.

    specs: the sharding of each array of a stack, except for the first stack.
    """
    # XLA chooses the sharding of the matrices, which is not known here; only that the
    # stack is not sharded yet, which must be stated, or XLA would move each matrix
    # twice.  It moves one mesh axis at a time, and otherwise gathers the whole stack.
    names = axis_names(apart.spec[0])

    def paths(stack):
        unknown = [PartitionSpec.UNCONSTRAINED] * (stack.ndim - 1)
        first = [PartitionSpec(names[:n] or None, *unknown) for n in range(len(names))]
        rows = [first, *([PartitionSpec(None, *spec)] for spec in specs)]
        return [[*(NamedSharding(apart.mesh, x) for x in row), apart] for row in rows]

    made = many(list(map(by_way_of, stacks, paths(stacks[0]))))
    return list(map(by_way_of, made, [path[::-1] for path in paths(made[0])]))


class JoinedSlots:
    """How slots are joined into one array for each of their dtypes.

    slots: the slots of one matrix, arrays or trees of them.
    n: the number of devices over which they are sharded.

    A slot that is sharded over n devices becomes n rows, one for each device, so
    joining such slots moves no data.  Slots that are replicated, because no axis is
    divisible by n, form a separate array.
    """

    def __init__(self, slots: ArrayTree, n: int):
        leaves, self.treedef = jax.tree.flatten(slots)
        self.n = n
        self.shapes = [x.shape for x in leaves]
        self.axes = [axis_to_spread(x.shape, n) for x in leaves]
        kinds = [(x.dtype, at is None) for x, at in zip(leaves, self.axes, strict=True)]
        lengths = [
            math.prod(shape) // self._rows(i) for i, shape in enumerate(self.shapes)
        ]
        self.joined = Joined(kinds, [(length,) for length in lengths])
        self.is_whole = self.joined.first([at is None for at in self.axes])

    def join(self, slots: ArrayTree) -> list[jax.Array]:
        """The joined arrays, with rows for the devices."""
        xs = self.treedef.flatten_up_to(slots)
        return self.joined.join([self._flat(i, x) for i, x in enumerate(xs)], axes=1)

    def split(self, parts: list[jax.Array]) -> ArrayTree:
        """The inverse of `join`."""
        xs = self.joined.split(parts)
        return self.treedef.unflatten(self._shaped(i, x) for i, x in enumerate(xs))

    def specs(self, names: tuple[str, ...]) -> list[PartitionSpec]:
        """How the joined arrays are sharded over the mesh axes `names`."""
        return [PartitionSpec(None if x else names) for x in self.is_whole]

    def _rows(self, i):
        return 1 if self.axes[i] is None else self.n

    # In steps that split one axis or merge neighbours, the only reshapes that explicit
    # mesh axes allow.
    def _flat(self, i, x):
        n, at = self._rows(i), self.axes[i]
        if at is None:
            return x.reshape(1, -1)
        x = jnp.moveaxis(x, at, 0)
        rows = x.reshape(len(x), math.prod(x.shape[1:]))
        return rows.reshape(n, len(x) // n, -1).reshape(n, -1)

    def _shaped(self, i, x):
        shape, at = self.shapes[i], self.axes[i]
        if at is None:
            return x.reshape(shape)
        others = shape[:at] + shape[at + 1 :]
        x = x.reshape(self.n, shape[at] // self.n, math.prod(others))
        rows = x.reshape(shape[at], math.prod(others))
        return jnp.moveaxis(rows.reshape(shape[at], *others), 0, at)
