"""Stages on whole matrices, divided among devices by the matrix.

On a matrix whose rows are sharded, every product takes a collective.  So matrices of
one shape are stacked, and the stack is sharded: each matrix is moved to one device,
which then has all of it, and back again at the end.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ..arrays.placement import replicated, with_sharding_of
from .array_split import ArraySplit, padded_stack


Sharding: TypeAlias = Literal["auto", "stack", "none"]
SHARDINGS = ("auto", "stack", "none")
# A matrix, and the slots that the stage keeps for it.
Row: TypeAlias = tuple[jax.Array, ...]


def check_sharding(sharding: str) -> None:
    if sharding not in SHARDINGS:
        raise ValueError(
            f"`sharding` is {sharding!r}, expected one of {list(SHARDINGS)}"
        )


@dataclass(frozen=True)
class Batched:
    """A stage of a rule that follows `leaf` and works on whole arrays.

    apply: (u, ctx, *slots) -> (u, *slots), of one array.  It runs under `jax.vmap`,
        with the same `ctx` for all, so that a `lax.cond` on it stays a branch: what is
        done once every few steps costs nothing in between.
    wants: from an array to whether the stage applies to it.
    slots: the names of the slots that `apply` takes and returns.
    sharding: "stack" stacks arrays of one shape and shards the stack over their mesh;
        "auto" does so if they are on a mesh and there are at least two; "none" leaves
        the sharding of each as it is.
    split: how arrays are split inside of `shard_map`.
    """

    apply: Callable
    wants: Callable[[jax.Array], bool]
    slots: tuple[str, ...] = ()
    sharding: Sharding = "auto"
    split: ArraySplit = ArraySplit(None)


def map_batched(one: Callable, rows: Sequence[Row], how: Batched) -> list[Row]:
    """`one` of each row, with rows of one shape computed together."""
    new = list(rows)
    for indices in _alike(rows):
        group = [rows[i] for i in indices]
        for i, row in zip(indices, _group(one, group, how), strict=True):
            new[i] = row
    return new


def _group(one: Callable, rows: list[Row], how: Batched) -> list[Row]:
    """`one` of each of some rows whose shapes are the same."""
    names, split = _axes_of(rows[0][0]), how.split
    is_spread = len(rows) > 1 and bool(names or split.entries)
    if how.sharding != "stack" and not (how.sharding == "auto" and is_spread):
        return [_alone(one, row, split) for row in rows]
    columns = list(zip(*rows, strict=True))
    if not split.entries:
        return _on_stack(one, columns, names)
    return list(zip(*split.deal(jax.vmap(one), columns), strict=False))[: len(rows)]


def _alike(rows: Sequence[Row]) -> list[list[int]]:
    """The indices of the rows of each shape and dtype, and each explicit sharding."""
    groups: dict[tuple, list[int]] = {}
    for i, row in enumerate(rows):
        groups.setdefault(tuple(map(jax.typeof, row)), []).append(i)
    return list(groups.values())


def _axes_of(x: jax.Array) -> tuple[str, ...]:
    """The axes of an array's mesh over which it may be moved."""
    # Not the manual ones: inside of `shard_map` only collectives cross them.
    mesh = jax.typeof(x).sharding.mesh
    axes = list(zip(mesh.axis_names, mesh.axis_types, strict=True))
    for kind in (AxisType.Explicit, AxisType.Auto):
        if names := tuple(name for name, found in axes if found == kind):
            return names
    return ()


def _alone(one: Callable, row: Row, split: ArraySplit) -> Row:
    # Inside of `shard_map` every device has the slots of a stage whole.
    u, *slots = row
    made = one(replicated(split.whole(u)), *map(replicated, slots))
    new = [split.mine(made[0], u), *made[1:]]
    return tuple(with_sharding_of(x, y) for x, y in zip(row, new, strict=True))


def _on_stack(one: Callable, columns: list[tuple], names: tuple[str, ...]) -> list[Row]:
    mesh = jax.typeof(columns[0][0]).sharding.mesh
    n = math.prod(mesh.shape[name] for name in names)
    stacks = [padded_stack(column, n) for column in columns]
    if names:
        is_explicit = AxisType.Explicit in mesh.axis_types
        through = _explicit if is_explicit else _auto
        apart = NamedSharding(mesh, PartitionSpec(names))
        stacks = through(jax.vmap(one), stacks, apart)
    else:
        stacks = jax.vmap(one)(*stacks)
    rows = zip(*columns, strict=True)
    return [
        tuple(with_sharding_of(x, s[i]) for x, s in zip(row, stacks, strict=True))
        for i, row in enumerate(rows)
    ]


def _explicit(many: Callable, stacks: list, apart: NamedSharding) -> list:
    put = jax.sharding.reshard
    before = [jax.typeof(x).sharding for x in stacks]
    return list(map(put, many(*(put(x, apart) for x in stacks)), before))


def _auto(many: Callable, stacks: list, apart: NamedSharding) -> list:
    # XLA chooses how the matrices are sharded, and that is not known here; only that
    # the stack is not sharded yet, which has to be said, or XLA would move each twice.
    put = jax.lax.with_sharding_constraint

    def together(x):
        rest = [PartitionSpec.UNCONSTRAINED] * (x.ndim - 1)
        return put(x, NamedSharding(apart.mesh, PartitionSpec(None, *rest)))

    made = many(*(put(together(x), apart) for x in stacks))
    return [together(put(x, apart)) for x in made]
