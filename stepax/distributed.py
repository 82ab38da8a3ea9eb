"""Optimizers on device meshes: the sharding of states, and the cost of a step.

Everything relies on JAX's partitioning of jitted programs; nothing here starts
processes or communicates on its own.
"""

import typing as _typing

from ._distributed.audit import (
    Audit as Audit,
    Collective as Collective,
    audit as audit,
)
from ._distributed.plan import (
    Link as Link,
    Plan as Plan,
    plan as plan,
)
from ._distributed.sharding import (
    init_sharded as init_sharded,
    state_sharding as state_sharding,
)
from ._distributed.zero import offload as offload, zero as zero
from ._names import attributes as _attributes


__all__ = [  # pyright: ignore[reportUnsupportedDunderAll] (known when it runs)
    name for name in globals() if not name.startswith("_")
]

if not _typing.TYPE_CHECKING:
    __dir__, __getattr__ = _attributes(__name__)
