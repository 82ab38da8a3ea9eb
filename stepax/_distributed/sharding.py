"""Where the state of an optimizer lies, by where its parameters lie."""

import itertools as it
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .._engine.base.protocol import (
    GradientTransformation,
    OptState,
    Params,
    is_array,
    is_none,
    partition_arrays,
    require_transformation,
)
from .._engine.functions.calls import explain_misuse
from .._engine.step.gradients import Gradients, Labels, LeafMask, align, fold
from .._engine.trees import errors


@explain_misuse
def state_sharding(
    tx: GradientTransformation,
    params: Params,
    mesh: Mesh | None = None,
    *,
    memory_kind: str | None = None,
) -> Any:
    """A `NamedSharding` for each array of `tx.init(params)`.

    What is shaped as a parameter lies as it does; what has more axes in front, such as
    a history, too, with these on every device; statistics of some of its axes, such as
    sums of rows, follow these axes where they are known by their lengths.  All else is
    on every device.

    For `out_shardings` of a jitted `init`, templates of checkpoints, and pipelines that
    make no arrays.

    tx: a transformation, of any library.
    params: arrays, or `jax.ShapeDtypeStruct`s with a sharding.
    mesh: by default that of the parameters.
    memory_kind: where on its devices the state lies, as "pinned_host".

    Raises a `ValueError` for parameters that are on no mesh or on another one, and
    names the path; a `TypeError` for `tx` that is no transformation.
    """
    require_transformation(tx, "`tx` of `state_sharding`")
    mesh = mesh_of(params, mesh)
    shapes = init_shapes(tx, params)

    def put(x, p=None):
        if not is_array(x):
            return x
        spec = PartitionSpec()
        if p is not None:
            spec = spec_like(x.shape, p.shape, p.sharding.spec)
        return NamedSharding(mesh, spec, memory_kind=memory_kind)

    return map_beside(put, shapes, params)


def map_beside(f: Callable, state: OptState, params: Params) -> Any:
    """`f(x, p)` of each array in a state and its parameter, `f(x)` where it has none.

    What belongs to a parameter stands in a tree with the structure of the parameters,
    in the place of it.
    """
    arrays = jax.tree.map(lambda p: p if is_array(p) else None, params)
    flow, some = Gradients(arrays, None), LeafMask(Labels([]))

    def beside(node):
        if type(node) is not type(arrays):
            return None
        try:
            return align(flow, node, "the state")
        except (ValueError, TypeError):
            return None

    def one(node):
        parts = beside(node)
        if parts is None:
            return f(node)
        pairs = zip(parts, flow.leaves, strict=True)
        new = [jax.tree.map(lambda x, p=p: f(x, p), part) for part, p in pairs]
        return fold(flow, new, node, some)

    if is_array(arrays):  # anything may stand in its place
        return jax.tree.map(lambda x: f(x, arrays), state)
    return jax.tree.map(one, state, is_leaf=lambda x: beside(x) is not None)


@explain_misuse
def init_sharded(tx: GradientTransformation, params: Params) -> OptState:
    """`tx.init(params)`, each array of which is made where `state_sharding` has it.

    No device ever holds more of the state than its part.

    tx, params: see there.
    """
    init, arrays = _init_of(tx, params)
    return jax.jit(init, out_shardings=state_sharding(tx, params))(arrays)


def init_shapes(tx: GradientTransformation, params: Params) -> OptState:
    """The state with shapes in place of arrays."""
    return jax.eval_shape(*_init_of(tx, params))


def init_shardings(tx: GradientTransformation, params: Params) -> Any:
    """Where a bare `jax.jit(tx.init)` puts each array of the state."""
    init, arrays = _init_of(tx, params)
    return jax.jit(init).lower(arrays).compile().output_shardings


def _init_of(tx: GradientTransformation, params: Params) -> tuple[Callable, list]:
    """`tx.init` as a function of the arrays among the parameters, and these."""
    arrays, rebuild = partition_arrays(params)
    return lambda arrays: tx.init(rebuild(arrays)), arrays


def mesh_of(params: Params, mesh: Mesh | None) -> Mesh:
    leaves = jax.tree.leaves(params, is_leaf=is_none)
    path = lambda i: errors.paths(params)[i]
    for i, p in enumerate(leaves):
        if not is_array(p):
            continue
        sharding: Any = getattr(p, "sharding", None)
        if not isinstance(sharding, NamedSharding):
            raise ValueError(
                f"the parameter at {path(i)} is on no mesh, its sharding is "
                f"{sharding}: place it with `jax.device_put(p, NamedSharding(mesh, "
                "spec))`"
            )
        found: Any = sharding.mesh
        mesh = found if mesh is None else mesh
        if found != mesh:
            raise ValueError(
                f"the parameter at {path(i)} is on the mesh {found}, expected {mesh}"
            )
    if mesh is None:
        raise ValueError("there are no parameters to take a mesh from; give `mesh`")
    return mesh


def spec_like(shape: tuple, p_shape: tuple, spec: PartitionSpec) -> PartitionSpec:
    """The spec of what has so many axes, or some of them, of a parameter."""
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
