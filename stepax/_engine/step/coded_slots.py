"""Coded slots: their initial values and placement on a mesh, and steps in two passes.

The engine decodes coded arrays and stores the new value in the form of the old one, as
it does with dtypes; see `kernel.py`.

On a CPU, XLA writes to memory what it takes the maxima of, so that a step needs
temporaries of 9 to 12 bytes per element, which arrays share that wait for each other
(`xla/order.py`).  Steps on parts of an array, one after another, would need 2 bytes,
for the new codes; but XLA runs such a loop on one core, and on 16 cores it took five
times as long.
"""

import itertools as it
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ..arrays import coding, placement


def zeros(p: Any, form: coding.Form, in_leaf: bool) -> coding.Coded:
    """Codes of zeros, without encoding; sharded as `p`, or over all devices."""
    # XLA would take seconds to fold the maxima of a constant, and memory for all of it.
    arrays = coding.coded_zeros(p.shape, form)
    (*_, (scales, *_)) = arrays
    made = [
        jnp.full(shape, value, dtype, device=_place(p, shape, scales))
        for shape, dtype, value in arrays
    ]
    return _put(p, coding.coded_as(form, *made), in_leaf)


def coded(p: Any, x: Any, form: coding.Form, in_leaf: bool) -> coding.Coded:
    """The initial value of a coded slot."""
    # Behind a barrier, or XLA would fold a constant.
    x = jax.lax.optimization_barrier(x) if isinstance(x, Tracer) else x
    return _put(p, coding.encoded(x, form), in_leaf)


def _put(p: Any, x: coding.Coded, in_leaf: bool) -> coding.Coded:
    if not in_leaf:
        return type(x)(*(placement.spread_over_mesh_of(p, y) for y in x))
    return type(x)(*(_shard_like(p, y, x.scales.shape) for y in x))


def _place(p: Any, shape: tuple, scales: tuple) -> Any:
    sharding = None if isinstance(p, Tracer) else placement.sharding_of(p)
    if not (isinstance(p, jax.Array) and isinstance(sharding, NamedSharding)):
        return None
    return NamedSharding(sharding.mesh, spec_of_coded(shape, scales, sharding))


def spec_of_coded(
    shape: tuple, scales: tuple, sharding: NamedSharding
) -> PartitionSpec:
    """The spec of codes or scales of this shape, for an array with a sharding."""
    # Blocks that shards cut are gathered for a step; only with automatic axes can XLA
    # still shard the codes.
    if AxisType.Explicit in sharding.mesh.axis_types:
        return placement.spec_of_runs(scales, sharding)
    entries = [*placement.spec_of_runs(shape, sharding)]
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
        return placement.placed(p, x, spec_of_coded(x.shape, scales, sharding))
    runs = [(m, n // m) for n, m in zip(p.shape, x.shape, strict=True)]
    p = p.reshape(*it.chain(*runs)).max(range(1, 2 * p.ndim, 2))
    return jnp.where(jnp.zeros_like(p, bool), p.astype(x.dtype), x)


# Number of elements of the smallest array for which two passes pay off.
LARGE = 2**16


def takes_two_passes(g: jax.Array, row: Sequence) -> bool:
    """Whether a GPU computes a step on a large gradient and its slots twice."""
    return coding.holds_codes(row) and not placement.is_on_mesh(g)


def in_two_passes(step: Callable, g: jax.Array, p: Any, row: Sequence) -> tuple:
    """`step(g, p, row)`, once for the scales of new slots, and once more for the rest.

    On a GPU a maximum ends a kernel, and XLA would write intermediate results to memory
    for the next one.  Reading the arguments again takes less than two thirds of that.
    """

    def both(f, *trees):
        return jax.tree.map(f, *trees, is_leaf=coding.is_coded)

    def taken(g, p, row, codes):
        def opened(old, codes):
            return (
                coding.read(codes, old.scales, old.form)
                if coding.is_coded(old)
                else old
            )

        return step(g, p, both(opened, row, codes))

    def scale(old, x):
        return coding.scales_of(x, old.form) if coding.is_coded(old) else None

    codes = both(lambda x: coding.whole_codes(x) if coding.is_coded(x) else None, row)
    scales = both(scale, row, taken(g, p, row, codes)[1])
    # A GPU removes the barrier only when it has divided the program into kernels.
    g, row, codes = jax.lax.optimization_barrier((g, row, codes))
    u, new = taken(g, p, row, codes)

    def finish(old, x, scale):
        return coding.encode_by(x, scale, old.form) if coding.is_coded(old) else x

    return u, both(finish, row, new, scales)
