"""Work on whole arrays, shared out among devices by the array.

What is computed from a matrix as a whole cannot follow a sharding of its rows without
an exchange at each product.  So arrays of one shape are stacked, and the stack is
sharded: an array is moved to the device that has all of it once, and back once.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ..arrays.placement import replicated, with_sharding_of
from .array_split import ArraySplit, padded_stack


Sharding: TypeAlias = Literal["auto", "stack", "none"]
SHARDINGS = ("auto", "stack", "none")


def check_sharding(sharding: str) -> None:
    if sharding not in SHARDINGS:
        raise ValueError(
            f"`sharding` is {sharding!r}, expected one of {list(SHARDINGS)}"
        )


@dataclass(frozen=True)
class Batched:
    """Work of a rule on single arrays as a whole, after its `leaf`.

    apply: (u, c) -> u, of one array; it runs under `jax.vmap`.
    wants: from an array to whether there is any work on it.
    sharding: "stack" stacks arrays of one shape and shards the stack over the mesh they
        are on; "auto" does where they are on a mesh, and are two or more; "none" leaves
        each as it lies.
    parts: how arrays are split inside of `shard_map`.
    """

    apply: Callable
    wants: Callable
    sharding: Sharding = "auto"
    parts: ArraySplit = ArraySplit(None)


def map_batched(
    one: Callable, arrays: list, sharding: Sharding, parts: ArraySplit
) -> list:
    """`one` of each array."""
    new = list(arrays)
    for found in _alike(arrays):
        xs = [arrays[i] for i in found]
        names = _axes_of(xs[0])
        is_spread = len(xs) > 1 and bool(names or parts.entries)
        is_stack = sharding == "stack" or (sharding == "auto" and is_spread)
        if not is_stack:
            made = [_alone(one, x, parts) for x in xs]
        elif parts.entries:
            made = list(parts.deal(jax.vmap(one), xs))[: len(xs)]
        else:
            made = _on_stack(one, xs, names)
        for i, x in zip(found, made, strict=True):
            new[i] = x
    return new


def _alike(arrays: list) -> Iterator[list[int]]:
    """The numbers of arrays of one shape and dtype, and one sharding if it is known."""
    groups = {}
    for i, x in enumerate(arrays):
        groups.setdefault(jax.typeof(x), []).append(i)
    return iter(groups.values())


def _axes_of(x: jax.Array) -> tuple[str, ...]:
    """The axes of the mesh that an array is on, over which it may be moved."""
    mesh = jax.typeof(x).sharding.mesh
    named: list = list(zip(mesh.axis_names, mesh.axis_types, strict=True))
    for kind in (AxisType.Explicit, AxisType.Auto):
        if names := tuple(name for name, found in named if found == kind):
            return names
    return ()


def _alone(one: Callable, x: jax.Array, parts: ArraySplit) -> jax.Array:
    return parts.mine(with_sharding_of(x, one(replicated(parts.whole(x)))), x)


def _on_stack(one: Callable, xs: list, names: tuple[str, ...]) -> list:
    mesh = jax.typeof(xs[0]).sharding.mesh
    stack = padded_stack(xs, math.prod(mesh.shape[name] for name in names))
    if not names:
        return list(jax.vmap(one)(stack))
    is_explicit = AxisType.Explicit in mesh.axis_types
    through = _explicit if is_explicit else _auto
    new = through(jax.vmap(one), stack, NamedSharding(mesh, PartitionSpec(names)))
    return [with_sharding_of(x, new[i]) for i, x in enumerate(xs)]


def _explicit(many: Callable, stack: jax.Array, apart: NamedSharding) -> jax.Array:
    as_before = jax.typeof(stack).sharding
    return jax.sharding.reshard(many(jax.sharding.reshard(stack, apart)), as_before)


def _auto(many: Callable, stack: jax.Array, apart: NamedSharding) -> jax.Array:
    # How the arrays lie is not known here, but that the stack is not yet sharded is.
    rest = [PartitionSpec.UNCONSTRAINED] * (stack.ndim - 1)
    together = NamedSharding(apart.mesh, PartitionSpec(None, *rest))
    put = jax.lax.with_sharding_constraint
    return put(put(many(put(put(stack, together), apart)), apart), together)
