"""Sharding the optimizer state over devices, or keeping it in host memory."""

import functools as ft
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from .._engine import rules as rx
from .._engine.arrays import placement
from .._engine.arrays.coding import is_coded
from .._engine.arrays.numerics import is_numeric
from . import map_beside, spec_like


# The largest number of bytes that one collective gathers.  XLA joins collectives for
# accelerators only; beyond this size starting another one costs less than copying
# arrays into one.
_MOST = 2**25


@rx.recorded
def zero(
    tx: rx.TransformationLike,
    mesh: Mesh | AbstractMesh,
    axis: str = "data",
    *,
    min_size: int = 1024,
    memory_kind: str | None = None,
) -> rx.GradientTransformationExtraArgs:
    """Shard the state and the computation of an optimizer over a mesh axis (ZeRO-1).

    For parameters that are replicated along a mesh axis, as in data-parallel training.
    Each device receives its shard of the gradients, stores its shard of the state and
    computes its shard of the updates, which are then gathered: updates of one shape and
    dtype together, up to 32 MiB.  An array is sharded along its longest axis that is
    divisible by the number of devices, or replicated if there is none.  Keywords with
    the structure of the gradients are sharded like them.

    tx: a transformation, of any library.
    mesh: the mesh; an abstract one in plans.
    axis: the name of the mesh axis.
    min_size: minimum number of elements of an array to shard.
    memory_kind: "pinned_host" keeps the state in host memory, see `offload`.

    Raises a `ValueError` for an axis that the mesh does not have, and a `TypeError` if
    `tx` is not a transformation.
    Source: arXiv:1910.02054, stage 1.

    >>> mesh = jax.make_mesh((jax.device_count(),), ("data",))
    >>> tx = stepax.distributed.zero(stepax.adamw(1e-3), mesh)
    """
    inner = rx.with_keywords(tx, "`tx` of `zero`")
    if not isinstance(mesh, Mesh | AbstractMesh):
        raise TypeError(
            f"`mesh` of `zero` must be a `jax.sharding.Mesh`, but is {mesh!r}: "
            "make one with `jax.make_mesh`"
        )
    if axis not in mesh.axis_names:
        raise ValueError(f"the mesh has the axes {mesh.axis_names}, but no {axis!r}")
    split = _Split(mesh, axis, min_size)

    def init(params):
        parts = jax.tree.map(split.take, params)
        return split.state(map_beside(split.first, inner.init(parts), parts), parts)

    def update(updates, state, params=None, **extra_args):
        g, p = jax.tree.map(split.take, (updates, params))
        like = jax.tree.structure(updates)
        # Line searches read gradients, too.
        extra = {
            k: jax.tree.map(split.take, x) if jax.tree.structure(x) == like else x
            for k, x in extra_args.items()
        }
        u, new = inner.update(g, state, p, **extra)
        new = split.state(new, updates)
        return split.give(u), new

    parts = rx.transformation(init, update, inner={"": inner}, only_places=True)
    return parts if memory_kind is None else offload(parts, memory_kind)


class _Split:
    """How arrays are sharded over the devices of an axis."""

    def __init__(self, mesh: Mesh | AbstractMesh, axis: str, min_size: int):
        self.mesh = mesh
        self.axis = axis
        self.min_size = min_size
        self.is_explicit = AxisType.Explicit in mesh.axis_types

    def take(self, x: Any) -> Any:
        at = self._at(x)
        return x if at is None else self._put(x, at, self.axis)

    def give(self, tree: rx.ArrayTree) -> rx.ArrayTree:
        """Gather the arrays of a tree; inside `jit` arrays of one shape together."""
        leaves, treedef = jax.tree.flatten(tree)
        for group in self._groups(leaves):
            xs = [leaves[i] for i in group]
            for i, x in zip(group, self._whole(xs), strict=True):
                leaves[i] = x
        return treedef.unflatten(leaves)

    def _groups(self, leaves: list) -> list[list[int]]:
        """The indices of the arrays that one collective gathers."""
        groups: dict[Any, list[int]] = {}
        for i, x in enumerate(leaves):
            if self._at(x) is not None:
                kind = i, x.dtype
                if isinstance(x, Tracer):
                    kind = x.shape, x.dtype, *self._spec(x)
                groups.setdefault(kind, []).append(i)
        found = []
        for group in groups.values():
            n = max(1, _MOST // max(1, leaves[group[0]].nbytes))
            found += [group[i : i + n] for i in range(0, len(group), n)]
        return found

    def _whole(self, xs: list) -> list:
        """Some arrays that are sharded alike, gathered."""
        at: Any = self._at(xs[0])
        if len(xs) == 1:
            return [self._put(xs[0], at, None)]
        spec = [None, *self._free_spec(xs[0])]
        spec[at + 1] = None
        stack = self._move(jnp.stack(xs), spec)
        return [stack[i] for i in range(len(xs))]

    def first(self, x: Any, p: Any = None) -> Any:
        """An array of the first state where its parameter is, if it has its shape."""
        is_alike = isinstance(p, Tracer) and rx.is_array(x) and x.shape == p.shape
        if not is_alike or self.is_explicit or (at := self._at(p)) is None:
            return x
        # Stages on whole matrices divide theirs over all axes of the mesh, which a
        # selection of both would prefer to the sharding of the parameter.
        spec = [self.axis if i == at else None for i in range(x.ndim)]
        return placement.shard_like(p, self._move(x, spec))

    def state(self, state: rx.OptState, params: rx.Params) -> rx.OptState:
        """Shard a state like the parameters."""

        def one(x: Any, p: Any = None) -> Any:
            if p is None or (at := self._at(p)) is None:
                return x
            if is_coded(x):
                n = self.mesh.shape[self.axis]
                parts = [
                    y if y.shape[at] % n else self._put(y, at, self.axis) for y in x
                ]
                return type(x)(*parts)
            if not rx.is_array(x):
                return x
            spec = self._free_spec(p)
            spec[at] = self.axis
            found = spec_like(x.shape, p.shape, PartitionSpec(*spec))
            return self._move(x, found) if self.axis in found else x

        return map_beside(one, state, params)

    def _at(self, x: Any) -> int | None:
        """The axis of an array to shard, the longest one possible, or `None`."""
        if not rx.is_array(x) or not is_numeric(x) or x.size < self.min_size:
            return None
        pairs = zip(x.shape, self._spec(x), strict=True)
        free = tuple(n if name in (None, self.axis) else 0 for n, name in pairs)
        return placement.axis_to_spread(free, self.mesh.shape[self.axis])

    def _spec(self, x: Any) -> list:
        """The sharding of an array as far as it is known; `None` for unsharded axes."""
        sharding = jax.typeof(x).sharding if isinstance(x, Tracer) else x.sharding
        known = isinstance(sharding, NamedSharding) and (
            self.is_explicit or not isinstance(x, Tracer)
        )
        spec = tuple(sharding.spec) if known else ()
        return [*spec, *[None] * (x.ndim - len(spec))]

    def _put(self, x: jax.Array, at: int, name: str | None) -> jax.Array:
        spec = self._free_spec(x)
        spec[at] = name
        return self._move(x, spec)

    def _free_spec(self, x: jax.Array) -> list:
        """As `_spec`, but unconstrained where it is not known."""
        if isinstance(x, Tracer) and not self.is_explicit:
            # It may also be sharded over other mesh axes.
            return [PartitionSpec.UNCONSTRAINED] * x.ndim
        return self._spec(x)

    def _move(self, x: jax.Array, spec: Iterable) -> jax.Array:
        to = NamedSharding(self.mesh, PartitionSpec(*spec))
        put = placement.moved if isinstance(x, Tracer) else jax.device_put
        return put(x, to)


@rx.recorded
def offload(
    tx: rx.TransformationLike, memory_kind: str = "pinned_host"
) -> rx.GradientTransformationExtraArgs:
    """Keep the state of an optimizer in host memory.

    Each step transfers it to the device and back, which the compiler may overlap with
    other computation.  A jitted `init` needs the whole state on the device once.

    tx: a transformation, of any library.
    memory_kind: "pinned_host".

    Raises a `ValueError` for another `memory_kind`, and a `TypeError` if `tx` is not a
    transformation.

    >>> tx = stepax.distributed.offload(stepax.adamw(1e-3))
    """
    inner = rx.with_keywords(tx, "`tx` of `offload`")
    if memory_kind not in (None, "pinned_host"):
        raise ValueError(
            f"`memory_kind` is {memory_kind!r}, expected 'pinned_host', the memory "
            "kind in which a jitted program may return arrays"
        )

    def init(params):
        return _map(ft.partial(_to_host, memory_kind, params), inner.init(params))

    def update(updates, state, params=None, **extra_args):
        here = _map(lambda x: jax.device_put(x, jax.memory.Space.Device), state)
        updates, new = inner.update(updates, here, params, **extra_args)
        return updates, _map(ft.partial(_to_host, memory_kind, params), new)

    return rx.transformation(init, update, inner={"": inner}, only_places=True)


def _map(f: Callable, tree: rx.ArrayTree) -> rx.ArrayTree:
    return jax.tree.map(lambda x: f(x) if rx.is_array(x) and is_numeric(x) else x, tree)


def _to_host(memory_kind: str, params: rx.Params, x: Any) -> Any:
    if isinstance(x, Tracer):
        return jax.device_put(x, jax.memory.Space.Host)
    x = jnp.asarray(x)
    if isinstance(x.sharding, NamedSharding):
        return jax.device_put(x, x.sharding.with_memory_kind(memory_kind))
    # A committed array stays on its devices: put counts where the parameters are.
    at = placement.mesh_sharding(params)
    at = x.sharding if at is None else NamedSharding(at.mesh, PartitionSpec())
    return placement.put_on(x, at.with_memory_kind(memory_kind))
