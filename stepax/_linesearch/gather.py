"""Which arrays of a search direction are joined: small ones that are not on a mesh.

Joining arrays on a mesh would take communication.
"""

import math

import jax

from .._engine.arrays.joined import Joined
from .._engine.xla.branch import varying


# The largest number of elements of a small array: above it, a pass takes longer than
# its launch; up to it, transfers take negligible time.
SHORT = 4096


def gather_short(*columns: list) -> Joined:
    """Group small arrays that are not on a mesh by their dtypes.

    columns: lists of arrays, which may have more leading axes than the first list.
    """
    rows = list(zip(*columns, strict=True))
    kinds = [_kind(row) or i for i, row in enumerate(rows)]
    return Joined(kinds, [x.shape for x in columns[0]])


def _kind(row: tuple) -> tuple | None:
    """The key shared by arrays in one vector; `None` for arrays kept separate."""
    # Not on a mesh: a slice of a vector would not be sharded like its parameter.
    is_placed = not all(jax.typeof(x).sharding.mesh.empty for x in row)
    if is_placed or math.prod(row[0].shape) > SHORT:
        return None
    return tuple((x.dtype, varying(jax.typeof(x))) for x in row)
