"""Coded slots: their initial values, and their placement on a mesh.

The engine decodes coded arrays and stores the new value in the form of the old one, as
it does with dtypes; see `kernel.py`.
"""

import itertools as it
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ..arrays.coding import Coded, Form, coded_as, coded_zeros, encoded
from ..arrays.placement import placed, sharding_of, spec_of_runs, spread_over_mesh_of


def zeros(p: Any, form: Form, in_leaf: bool) -> Coded:
    """Codes of zeros for a parameter, without encoding.

    in_leaf: whether they are sharded like the parameter; otherwise over all devices.
    """
    # XLA would take seconds to fold the maxima of a constant, and memory for all of it.
    arrays = coded_zeros(p.shape, form)
    (*_, (scales, *_)) = arrays
    made = [
        jnp.full(shape, value, dtype, device=_place(p, shape, scales))
        for shape, dtype, value in arrays
    ]
    return _put(p, coded_as(form, *made), in_leaf)


def coded(p: Any, x: Any, form: Form, in_leaf: bool) -> Coded:
    """The initial value of a coded slot."""
    # Behind a barrier, or XLA would fold a constant.
    x = jax.lax.optimization_barrier(x) if isinstance(x, Tracer) else x
    return _put(p, encoded(x, form), in_leaf)


def _put(p: Any, x: Coded, in_leaf: bool) -> Coded:
    if not in_leaf:
        return type(x)(*(spread_over_mesh_of(p, y) for y in x))
    return type(x)(*(_shard_like(p, y, x.scales.shape) for y in x))


def _place(p: Any, shape: tuple, scales: tuple) -> Any:
    sharding = None if isinstance(p, Tracer) else sharding_of(p)
    if not (isinstance(p, jax.Array) and isinstance(sharding, NamedSharding)):
        return None
    return NamedSharding(sharding.mesh, spec_of_coded(shape, scales, sharding))


def spec_of_coded(
    shape: tuple, scales: tuple, sharding: NamedSharding
) -> PartitionSpec:
    """The spec of codes or scales of this shape, for an array with a given sharding.

    scales: the shape of the scales.
    """
    # Blocks that shards cut are gathered for a step; only with automatic axes can XLA
    # still shard the codes.
    if AxisType.Explicit in sharding.mesh.axis_types:
        return spec_of_runs(scales, sharding)
    entries = [*spec_of_runs(shape, sharding)]
    while entries and entries[-1] is None:  # as XLA writes what it returns
        entries.pop()
    return PartitionSpec(*entries)


def _shard_like(p: Any, x: jax.Array, scales: tuple) -> jax.Array:
    """`x`, whose elements represent runs of those of `p`, with the sharding of `p`."""
    # As `placement.shard_like`: a selection that XLA removes after it has propagated
    # the sharding.
    if not isinstance(p, Tracer):
        return x
    sharding: Any = jax.typeof(p).sharding
    if any(sharding.spec):
        return placed(p, x, spec_of_coded(x.shape, scales, sharding))
    runs = [(m, n // m) for n, m in zip(p.shape, x.shape, strict=True)]
    p = p.reshape(*it.chain(*runs)).max(range(1, 2 * p.ndim, 2))
    return jnp.where(jnp.zeros_like(p, bool), p.astype(x.dtype), x)
