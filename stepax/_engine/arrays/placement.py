"""Placement of arrays on the devices of a mesh, such as those that `init` makes.

On a single device these functions return their argument unchanged.
"""

import itertools as it
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import (
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec,
    Sharding,
    SingleDeviceSharding,
)


def sharding_of(x: Any) -> Any:
    """The sharding of an array; `None` for anything else."""
    return getattr(x, "sharding", None)


def mesh_sharding(tree: object) -> NamedSharding | None:
    """The sharding of the first leaf that is on a mesh; leaves may also be shapes."""
    shardings = (getattr(x, "sharding", None) for x in jax.tree.leaves(tree))
    return next((s for s in shardings if isinstance(s, NamedSharding)), None)


def put_on(x: jax.Array, where: Sharding) -> jax.Array:
    """`device_put`, including from this process to devices of several processes."""
    # For an array that only this process holds, the `device_put` of JAX 0.10 to 0.12
    # returns an array that cannot be read, and it refuses random keys.
    is_here = not isinstance(x, jax.Array) or x.is_fully_addressable
    if where.is_fully_addressable or not is_here:
        return jax.device_put(x, where)
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        data = put_on(jax.random.key_data(x), where)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
    # Every process has all of `x`, and copies the parts of its own devices to them.
    host = np.asarray(x)
    return jax.make_array_from_callback(x.shape, where, lambda part: host[part])


def shard_like(p: jax.Array, x: jax.Array) -> jax.Array:
    """`x` with the sharding of `p`, which a jitted function would otherwise lose."""
    # Concrete arrays have their sharding already.
    if not isinstance(p, Tracer) or p.shape != x.shape:
        return x
    # Explicit axes.
    if any(jax.typeof(p).sharding.spec) or any(jax.typeof(x).sharding.spec):
        x = jax.sharding.reshard(x, jax.typeof(p).sharding)
    # With automatic axes: a selection that never takes `p`.  XLA removes it, but only
    # after it has propagated the sharding from operands to result; a `lax.select` with
    # a constant condition would be folded before that.
    p = p if jnp.iscomplexobj(x) else p.real
    return jnp.where(jnp.zeros_like(p, bool), p.astype(x.dtype), x)


def with_sharding_of(p: jax.Array, x: jax.Array) -> jax.Array:
    """As `shard_like`, but unconstrained if `p` is not on a mesh."""
    return shard_like(p, x) if is_on_mesh(p) else x


def replicated(x: jax.Array) -> jax.Array:
    """`x` replicated over its mesh, for operations that do not support explicit axes.

    With automatic axes `x` is returned unchanged, and XLA gathers what it needs.
    """
    sharding = jax.typeof(x).sharding
    if not any(sharding.spec):
        return x
    return jax.sharding.reshard(x, NamedSharding(sharding.mesh, PartitionSpec()))


def spec_of_runs(shape: tuple[int, ...], sharding: NamedSharding) -> PartitionSpec:
    """The spec of an array of runs of a sharded one; uneven axes are not sharded."""
    spec, sizes = sharding.spec, sharding.mesh.shape
    parts = [math.prod(sizes[name] for name in axis_names(entry)) for entry in spec]
    rows = zip(spec, parts, shape, strict=False)
    return PartitionSpec(*(x if size % n == 0 else None for x, n, size in rows))


def axis_names(entry: Any) -> tuple[str, ...]:
    if entry is None:
        return ()
    return tuple(entry) if isinstance(entry, tuple | list) else (entry,)


def apart(x: jax.Array, axis: int, length: int) -> jax.Array:
    """`x` with an axis split into runs of this length."""
    at = axis % x.ndim
    shape = (*x.shape[:at], x.shape[at] // length, *x.shape[at + 1 :])
    sharding = jax.typeof(x).sharding
    # An explicit axis must not be split if shards cut runs.
    if any(sharding.spec) and (spec := spec_of_runs(shape, sharding)) != sharding.spec:
        x = moved(x, NamedSharding(sharding.mesh, spec))
    return x.reshape(*shape[: at + 1], length, *shape[at + 1 :])


def free_axes(x: jax.Array) -> tuple[str, ...]:
    """The axes of an array's mesh over which it may be moved."""
    # Not manual axes: inside `shard_map` only collectives cross them.
    mesh = jax.typeof(x).sharding.mesh
    axes = list(zip(mesh.axis_names, mesh.axis_types, strict=True))
    for kind in (AxisType.Explicit, AxisType.Auto):
        if names := tuple(name for name, found in axes if found == kind):
            return names
    return ()


def number_of_devices(x: jax.Array) -> int:
    """The number of devices over which an array may be moved."""
    mesh = jax.typeof(x).sharding.mesh
    return math.prod(mesh.shape[name] for name in free_axes(x))


def axis_to_spread(shape: tuple[int, ...], n: int) -> int | None:
    """The longest axis along which an array can be sharded over n devices."""
    fits = [i for i, length in enumerate(shape) if length and length % n == 0]
    return max(fits, key=lambda i: shape[i], default=None)


def along_first(x: jax.Array) -> tuple[str, ...]:
    """The free axes, beginning with those along which the first axis is divided."""
    spec = jax.typeof(x).sharding.spec
    first = axis_names(spec[0]) if len(spec) else ()
    return (*first, *(name for name in free_axes(x) if name not in first))


def spread_over_mesh_of(p: jax.Array, x: jax.Array, at: int | None = None) -> jax.Array:
    """`x` divided over the mesh of `p` as in `zero`, or replicated if it cannot be.

    at: the axis along which it is divided if it can be.
    """
    spec = _spread(p, x, at)
    return x if spec is None else placed(p, x, spec)


def _spread(p, x, at=None):
    """The spec of `x` divided over the mesh of `p`; `None` if it cannot be."""
    names = free_axes(p) if isinstance(p, jax.Array) else ()
    n = number_of_devices(p) if names else 0
    if not names or at is None or x.shape[at] % n:
        at = axis_to_spread(x.shape, n) if names else None
    return None if at is None else PartitionSpec(*[None] * at, names)


def whole_on_mesh_of(p: jax.Array, x: jax.Array) -> jax.Array:
    """`x` replicated over the mesh of `p`, whatever the sharding of `p` is."""
    is_there = isinstance(p, jax.Array) and free_axes(p)
    return placed(p, x, PartitionSpec()) if is_there else x


def along_axis(p: jax.Array, x: jax.Array, at: int) -> jax.Array:
    """`x` divided as `p` is along an axis alone; whole with explicit axes."""
    known = jax.typeof(p).sharding if isinstance(p, Tracer) else sharding_of(p)
    if not isinstance(known, NamedSharding) or not free_axes(p):
        return x
    if AxisType.Explicit in known.mesh.axis_types:
        return whole_on_mesh_of(p, x)
    spec: list[Any] = [None] * x.ndim
    if not isinstance(p, Tracer):
        spec[at] = (*known.spec, *spec)[at]
        return placed(p, x, PartitionSpec(*spec))
    # A selection that never takes `p`, as in `shard_like`, for the axis left free.
    rest = [i for i in range(p.ndim) if i != at]
    like = jnp.max(p.real, rest, keepdims=True).astype(x.dtype)
    spec[at] = PartitionSpec.UNCONSTRAINED
    x = jnp.where(jnp.zeros(x.shape, bool), like, x)
    return placed(p, x, PartitionSpec(*spec))


def placed(p: jax.Array, x: jax.Array, spec: PartitionSpec) -> jax.Array:
    """`x` in this sharding, on the mesh of `p`."""
    if not isinstance(p, Tracer):
        where = p.sharding
        if isinstance(where, NamedSharding) and not isinstance(x, Tracer):
            return put_on(x, NamedSharding(where.mesh, spec))
        return x
    # A constant does not depend on parameters, and a program without any is not on a
    # mesh.  And XLA would also move an array that is not read in any other sharding.
    x, _ = jax.lax.optimization_barrier((x, p))
    mesh = jax.typeof(p).sharding.mesh
    return moved(x, NamedSharding(mesh, spec))


def shared_like(p: jax.Array, x: jax.Array, at: int | None = None) -> jax.Array:
    """As `shard_like`, but divided among the devices of a mesh that replicate `p`.

    With explicit axes only if all of them do, as an array that is divided further than
    `p` could not be added to it.
    """
    known = jax.typeof(p).sharding if isinstance(p, Tracer) else sharding_of(p)
    spec = _spread(p, x, at) if isinstance(known, NamedSharding) else None
    is_explicit = spec is not None and AxisType.Explicit in known.mesh.axis_types
    if spec is None or (is_explicit and any(known.spec)):
        return shard_like(p, x)
    if is_explicit:
        return placed(p, x, spec)
    if not isinstance(p, Tracer):
        return put_on(x, known.update(spec=extended(known.spec, spec)))
    # Traced, it is not known how `p` is sharded.  XLA propagates shardings through
    # selections before reversals, so this one only extends that of `p`; and it removes
    # both selections, with what they never take.  A thin array, since XLA cannot move
    # every one from the axis of `spec` to those of `p` without a warning.
    thin = [n if i == len(spec) - 1 else 1 for i, n in enumerate(x.shape)]
    divided = jax.lax.rev(placed(p, jnp.zeros(thin, x.dtype), spec), (0,))
    return shard_like(p, shard_like(jnp.broadcast_to(divided, x.shape), x))


def extended(spec: PartitionSpec, more: PartitionSpec) -> PartitionSpec:
    """`spec` with the axes of `more` that continue it, as XLA propagates them."""
    used = [name for entry in spec for name in axis_names(entry)]
    found = []
    for entry, other in it.zip_longest(spec, more):
        own, wanted = axis_names(entry), axis_names(other)
        if wanted[: len(own)] == own:
            own += tuple(it.takewhile(lambda x: x not in used, wanted[len(own) :]))
        used.extend(own)
        found.append(own or None)
    return PartitionSpec(*found)


def is_on_mesh(x: jax.Array) -> bool:
    """Whether it is known that an array is on a mesh."""
    return not jax.typeof(x).sharding.mesh.empty


def moved(x: jax.Array, to: NamedSharding) -> jax.Array:
    """A traced array in another sharding, of explicit or automatic axes."""
    if AxisType.Explicit in to.mesh.axis_types:
        return jax.sharding.reshard(x, to)
    return jax.lax.with_sharding_constraint(x, to)


def placed_init(init: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`init`, whose state is then placed by `init_on_mesh`."""

    # A plain function, because libraries that inspect closures only know these.
    def placed(params):
        return init_on_mesh(init, params)

    return placed


def init_on_mesh(init: Callable[[Any], Any], params: Any) -> Any:
    """`init(params)`; arrays on one device are replicated on the parameters' mesh.

    Step counts, for example, are created on the default device.  With several
    processes, a checkpoint cannot hold them beside arrays that are spread over all
    devices.
    """
    state, ps = init(params), jax.tree.leaves(params)
    # Inside of `jit` the compiler decides where results are placed.
    if any(isinstance(p, Tracer) for p in ps):
        return state
    found = mesh_sharding(ps)
    # Shapes may have an abstract mesh, which has no devices.
    if found is None or not isinstance(found.mesh, Mesh) or found.mesh.size == 1:
        return state
    everywhere = NamedSharding(found.mesh, PartitionSpec())

    def put(x):
        is_alone = isinstance(sharding_of(x), SingleDeviceSharding)
        return put_on(x, everywhere) if is_alone else x

    return jax.tree.map(put, state)
