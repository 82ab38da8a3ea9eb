"""Optimizers on device meshes: the sharding of states, and the cost of a step.

Everything relies on JAX's partitioning of jitted programs; nothing here starts
processes or communicates on its own.
"""

import typing as _typing

from ._distributed import init_sharded, state_sharding
from ._distributed.audit import Audit, Collective, audit
from ._distributed.plan import Plan, plan
from ._distributed.zero import offload, zero
from ._names import attributes as _attributes


__all__ = [
    "Audit", "Collective", "Plan", "audit", "init_sharded", "offload", "plan",
    "state_sharding", "zero",
]  # fmt: skip

if not _typing.TYPE_CHECKING:
    __dir__, __getattr__ = _attributes(__name__)
