"""Shardings of optimizer states, derived from those of the parameters."""

import functools as ft
import itertools as it
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .._engine import rules as rx
from .._engine.arrays.coding import is_coded
from .._engine.arrays.placement import axis_names, extended, sharding_of
from .._engine.base import partition_arrays
from .._engine.step.coded_slots import spec_of_coded
from .._engine.trees.selection import Labels, LeafMask
from .._engine.xla.jaxprs import placements


@rx.explain_misuse
def state_sharding(
    tx: rx.TransformationLike,
    params: rx.Params,
    mesh: Mesh | None = None,
    *,
    memory_kind: str | None = None,
) -> Any:
    """A `NamedSharding` for each array of `tx.init(params)`.

    Arrays shaped like a parameter are sharded like it; additional leading axes, such as
    those of a history, are not sharded.  Statistics over some axes of a parameter, such
    as row sums, are sharded along the remaining axes if their lengths identify them;
    what `init` computes from a parameter, with as many axes, along those of its length.
    Arrays that `init` itself shards, such as factors of preconditioners or the state
    under `zero`, keep that sharding.  All other arrays are replicated.

    Use it for `out_shardings` of a jitted `init`, checkpoint templates, and pipelines
    that create no arrays.

    tx: a transformation, of any library.
    params: arrays, or `jax.ShapeDtypeStruct`s with a sharding.
    mesh: the mesh; by default the mesh of the parameters.
    memory_kind: memory in which to place the state, such as "pinned_host"; by default
        where `init` places it, which is in host memory under `offload`.

    Raises a `ValueError` for parameters that are not on a mesh, or on another mesh,
    with the path, and a `TypeError` if `tx` is not a transformation.
    """
    rx.require_transformation(tx, "`tx` of `state_sharding`")
    mesh = mesh_of(params, mesh)
    init, arrays = init_and_arrays(tx, params)
    program, shapes = jax.make_jaxpr(init, return_shape=True)(arrays)
    # Types do not contain shardings along automatic mesh axes, but the program does.
    found = placements(program.jaxpr)
    params = _as_read(params, found.read)

    def share(x, p=None):
        return jax.tree.map(lambda y: _along_equal(y.shape, p), x)

    put_at = ft.partial(NamedSharding, mesh, memory_kind=memory_kind)

    def put(x, p=None):
        if not (rx.is_array(x) or is_coded(x)):
            return x
        if p is None:
            return put_at(PartitionSpec())
        if is_coded(x):
            specs = [spec_of_coded(y.shape, x.scales.shape, p.sharding) for y in x]
            return type(x)(*map(put_at, specs))
        return put_at(spec_like(x.shape, p.shape, p.sharding.spec))

    leaves, treedef = jax.tree.flatten(map_beside(put, shapes, params))
    if memory_kind is None:
        leaves = list(map(_in_memory, leaves, program.out_avals))
    alike = jax.tree.leaves(map_beside(share, shapes, params))
    alike = [x if yes else None for x, yes in zip(alike, found.is_read, strict=True)]
    return treedef.unflatten(map(_decided, leaves, found.firm, found.loose, alike))


def _in_memory(place: NamedSharding, aval: Any) -> NamedSharding:
    is_there = aval.memory_space == jax.memory.Space.Host
    return place.with_memory_kind("pinned_host") if is_there else place


def _decided(
    place: NamedSharding, firm: Any, loose: Any, alike: PartitionSpec | None
) -> NamedSharding:
    """The sharding of an array, from that of its parameter and those set by `init`."""
    # Devices that replicate the parameter share its state.
    spec = extended(place.spec, loose) if firm is None and loose else firm
    rest = place.spec if any(place.spec) or alike is None else alike
    return place.update(spec=rest if spec is None else _merged(spec, rest))


def _as_read(params: rx.Params, specs: list) -> rx.Params:
    """The parameters as shapes, in these shardings where they are not `None`."""
    arrays, rebuild = partition_arrays(params)

    def one(p, spec):
        sharding: Any = sharding_of(p)
        if spec is not None:
            sharding = sharding.update(spec=_merged(spec, sharding.spec))
        return jax.ShapeDtypeStruct(p.shape, p.dtype, sharding=sharding)

    return rebuild(map(one, arrays, specs))


def _merged(spec: PartitionSpec, otherwise: PartitionSpec) -> PartitionSpec:
    """`spec`, with axes of the other where it leaves the compiler free to choose."""
    rest = (*otherwise, *[None] * (len(spec) - len(otherwise)))
    free = PartitionSpec.UNCONSTRAINED
    used = {name for x in spec if x is not free for name in axis_names(x)}

    def left(entry):
        names = it.takewhile(lambda name: name not in used, axis_names(entry))
        return tuple(names) or None

    return PartitionSpec(
        *(left(y) if x is free else x for x, y in zip(spec, rest, strict=False))
    )


def map_beside(f: Callable, state: rx.OptState, params: rx.Params) -> rx.OptState:
    """`f(x, p)` for each array in a state and its parameter; `f(x)` if it has none.

    An array belongs to a parameter if it has the same position in a tree with the
    structure of the parameters.  Coded arrays are passed as their node.
    """
    arrays = jax.tree.map(lambda p: p if rx.is_array(p) else None, params)
    gradients, some = rx.Gradients(arrays, None), LeafMask(Labels([]))

    def beside(node):
        if type(node) is not type(arrays):
            return None
        try:
            return gradients.leaves_of(node, "the state")
        except (ValueError, TypeError):
            return None

    def one(node):
        parts = beside(node)
        if parts is None:
            return f(node)
        pairs = zip(parts, gradients.leaves, strict=True)
        new = [
            jax.tree.map(lambda x, p=p: f(x, p), part, is_leaf=is_coded)
            for part, p in pairs
        ]
        return gradients.tree_of(new, node, some)

    if rx.is_array(arrays):  # a single parameter: any subtree belongs to it
        return jax.tree.map(lambda x: f(x, arrays), state, is_leaf=is_coded)
    return jax.tree.map(one, state, is_leaf=lambda x: beside(x) is not None)


@rx.explain_misuse
def init_sharded(tx: rx.TransformationLike, params: rx.Params) -> rx.OptState:
    """`tx.init(params)`, with each array created in its sharding by `state_sharding`.

    No device ever holds more than its shards of the state.

    tx, params: a transformation, and parameters on a mesh; see `state_sharding`.
    """
    init, arrays = init_and_arrays(tx, params)
    return jax.jit(init, out_shardings=state_sharding(tx, params))(arrays)


def init_shapes(tx: rx.TransformationLike, params: rx.Params) -> rx.OptState:
    return jax.eval_shape(*init_and_arrays(tx, params))


def init_shardings(tx: rx.TransformationLike, params: rx.Params) -> Any:
    """The shardings that a plain `jax.jit(tx.init)` gives to the state."""
    init, arrays = init_and_arrays(tx, params)
    return jax.jit(init).lower(arrays).compile().output_shardings


def init_and_arrays(
    tx: rx.TransformationLike, params: rx.Params
) -> tuple[Callable, list]:
    """`tx.init` as a function of the arrays among the parameters, and these arrays."""
    arrays, rebuild = partition_arrays(params)

    def init(arrays):
        return tx.init(rebuild(arrays))

    return init, arrays


def mesh_of(params: rx.Params, mesh: Mesh | None) -> Mesh:
    for i, p in enumerate(jax.tree.leaves(params, is_leaf=rx.is_none)):
        if not rx.is_array(p):
            continue
        sharding: Any = sharding_of(p)
        if not isinstance(sharding, NamedSharding):
            raise ValueError(
                f"the parameter at {rx.errors.paths(params)[i]} is not on a mesh; its "
                f"sharding is {sharding}: place it with `jax.device_put(p, "
                "NamedSharding(mesh, spec))`"
            )
        found: Any = sharding.mesh
        mesh = found if mesh is None else mesh
        if found != mesh:
            raise ValueError(
                f"the parameter at {rx.errors.paths(params)[i]} is on the mesh "
                f"{found}, expected {mesh}"
            )
    if mesh is None:
        raise ValueError("there are no parameters to take a mesh from; pass `mesh`")
    return mesh


def _along_equal(shape: tuple, p: Any) -> PartitionSpec:
    """The spec of an array that has as many axes as a parameter: of equal ones."""
    if p is None or len(shape) != len(p.shape):
        return PartitionSpec()
    entries = (*p.sharding.spec, *[None] * len(shape))
    rows = zip(shape, p.shape, entries, strict=False)
    return PartitionSpec(*(x if n == length else None for n, length, x in rows))


def spec_like(shape: tuple, p_shape: tuple, spec: PartitionSpec) -> PartitionSpec:
    """The spec of an array that has the axes of a parameter, or some of them."""
    entries = (*spec, *[None] * (len(p_shape) - len(spec)))
    front = len(shape) - len(p_shape)
    if front >= 0 and shape[front:] == p_shape:
        return PartitionSpec(*[None] * front, *entries)
    chosen = it.combinations(range(len(p_shape)), len(shape))
    fits = {
        tuple(entries[i] for i in axes)
        for axes in chosen
        if tuple(p_shape[i] for i in axes) == shape
    }
    return PartitionSpec(*fits.pop()) if len(fits) == 1 else PartitionSpec()
