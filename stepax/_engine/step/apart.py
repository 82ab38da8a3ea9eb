"""Stacks that are moved apart, so that each device computes its own part, and back."""

import functools as ft
from collections.abc import Callable

import jax
from jax.sharding import NamedSharding, PartitionSpec

from ..arrays.placement import axis_names, moved


def on_parts(local: Callable, ctx: object, apart: NamedSharding) -> Callable:
    """The function of stacks that lie `apart` which is `local(ctx, part)` on devices.

    Each device runs its own matrices: decompositions do not accept a stack that is
    sharded over explicit axes, and over automatic axes XLA might gather it for them.
    """
    many = jax.shard_map(
        local,
        mesh=apart.mesh,
        in_specs=(PartitionSpec(), apart.spec),
        out_specs=apart.spec,
        axis_names=set(axis_names(apart.spec[0])),
        check_vma=False,
    )
    return ft.partial(many, ctx)


def in_explicit(
    many: Callable, stacks: list, homes: list[NamedSharding], apart: NamedSharding
) -> list:
    """`many` of stacks that are distributed, and then moved to their homes."""
    stops = [[home, *_stops(home, apart)] for home in homes]
    there = list(map(by_way_of, stacks, [path[1:] for path in stops]))
    return list(map(by_way_of, many(there), [path[-2::-1] for path in stops]))


def by_way_of(x, path):
    """An array in the last sharding of a path, by way of the others."""
    return ft.reduce(moved, path, x)


def _stops(home: NamedSharding, apart: NamedSharding) -> list[NamedSharding]:
    """The shardings through which a stack is distributed; `apart` is the last.

    XLA moves mesh axes at once if they are on one axis of an array, and otherwise
    gathers the whole stack on each device.
    """
    first, *entries = map(axis_names, (apart.spec[0], *home.spec))
    names, found = first, []
    at = {name: i for i, entry in enumerate(entries) for name in entry}
    for i, name in enumerate(names, 1):
        if i == len(names) or at.get(name) != at.get(names[i]):
            left = [tuple(x for x in entry if x in names[i:]) for entry in entries[1:]]
            spec = PartitionSpec(names[:i], *(entry or None for entry in left))
            found.append(NamedSharding(home.mesh, spec))
    return found
