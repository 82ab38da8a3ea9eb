"""Where arrays lie on a mesh of devices.

On one device these functions return what they are given.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec, Sharding


def mesh_sharding(tree: Any) -> NamedSharding | None:
    """The sharding of the first leaf on a mesh; the leaves are arrays, or shapes."""
    lies = (getattr(x, "sharding", None) for x in jax.tree.leaves(tree))
    return next((s for s in lies if isinstance(s, NamedSharding)), None)


def put_on(x: Any, where: Sharding) -> jax.Array:
    """`device_put`, also of an array of this process alone on devices of several.

    JAX 0.10 to 0.12 make an array of it that cannot be read, and refuse random keys.
    """
    is_here = not isinstance(x, jax.Array) or x.is_fully_addressable
    if where.is_fully_addressable or not is_here:
        return jax.device_put(x, where)
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        data = put_on(jax.random.key_data(x), where)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
    host = np.asarray(x)
    return jax.make_array_from_callback(x.shape, where, lambda part: host[part])


def shard_like(p: jax.Array, x: jax.Array) -> jax.Array:
    """`x` with the sharding of `p`, which a jitted function would else forget.

    The selection never takes `p`.  XLA removes it, but only after it has propagated
    the sharding from the operands to the result; `lax.select` would be folded before.
    """
    if not isinstance(p, Tracer) or p.shape != x.shape:
        return x
    if any(jax.typeof(p).sharding.spec):  # explicit axes
        x = jax.sharding.reshard(x, jax.typeof(p).sharding)
    p = p if jnp.iscomplexobj(x) else p.real
    return jnp.where(jnp.zeros_like(p, bool), p.astype(x.dtype), x)


def with_sharding_of(p: jax.Array, x: jax.Array) -> jax.Array:
    """The same, at no cost where `p` is on no mesh."""
    return x if jax.typeof(p).sharding.mesh.empty else shard_like(p, x)


def replicated(x: jax.Array) -> jax.Array:
    """`x`, all of it on every device, where an operation along explicit axes would be
    refused; with automatic axes XLA gathers what it has to."""
    lies = jax.typeof(x).sharding
    if not any(lies.spec):
        return x
    return jax.sharding.reshard(x, NamedSharding(lies.mesh, PartitionSpec()))
