"""Optimizers on meshes of devices: where their state lies, and what a step moves.

All of it is for JAX's own engine, which partitions jitted programs; nothing here starts
processes or communicates by itself.
"""

from ._distributed.audit import (
    Audit as Audit,
    Collective as Collective,
    audit as audit,
)
from ._distributed.offload import offload as offload
from ._distributed.sharding import (
    init_sharded as init_sharded,
    state_sharding as state_sharding,
)
from ._distributed.zero import zero as zero
