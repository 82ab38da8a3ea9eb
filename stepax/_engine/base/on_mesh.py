"""`init`, whose arrays are then placed on the mesh of the parameters."""

from collections.abc import Callable
from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from ..arrays.placement import mesh_sharding, put_on


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
    is_alone = lambda x: isinstance(getattr(x, "sharding", None), SingleDeviceSharding)
    put = lambda x: put_on(x, everywhere) if is_alone(x) else x
    return jax.tree.map(put, state)
