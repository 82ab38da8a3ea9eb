"""Concatenating small arrays into a few vectors, to reduce the number of operations.

XLA compiles and launches each operation on an array separately, which for hundreds of
small arrays takes longer than the computation.  Arrays on a mesh are not concatenated,
which would require communication.
"""

import functools as ft
import math
from collections.abc import Hashable, Sequence

import jax

from .._engine.arrays.branch import varying
from .._engine.trees.packed import join, split


# The largest number of elements of a small array: above it, a pass takes longer than
# its launch; up to it, transfers take negligible time.
SHORT = 4096


class Gathering:
    """Which arrays are concatenated into one vector; others keep their shape."""

    def __init__(self, kinds: Sequence[Hashable], shapes: Sequence[tuple]):
        """kinds: a key for each array; arrays with the same key are concatenated."""
        groups: dict[Hashable, list[int]] = {}
        for i, kind in enumerate(kinds):
            groups.setdefault(kind, []).append(i)
        self._groups = list(groups.values())
        self._shapes = shapes

    def join(self, xs: list, axes: int = 0) -> list:
        """Concatenate arrays into vectors; all may have `axes` leading axes."""
        several = lambda at: _join([xs[i] for i in at], axes)
        return [xs[at[0]] if len(at) == 1 else several(at) for at in self._groups]

    def first(self, xs: list) -> list:
        """The first array of each vector."""
        return [xs[at[0]] for at in self._groups]

    def split(self, vectors: list) -> list:
        """The arrays in some vectors, which may have leading axes."""
        found: list = [None] * len(self._shapes)
        for at, x in zip(self._groups, vectors, strict=True):
            shapes = [self._shapes[i] for i in at]
            parts = [x] if len(at) == 1 else split(x, shapes)
            for i, part in zip(at, parts, strict=True):
                found[i] = part
        return found


def gather_short(*columns: list) -> Gathering:
    """Group small arrays that are on no mesh by their dtypes.

    columns: lists of arrays, which may have more leading axes than the first list.
    """
    rows = list(zip(*columns, strict=True))
    kinds = [_kind(row) or i for i, row in enumerate(rows)]
    return Gathering(kinds, [x.shape for x in columns[0]])


def _kind(row: tuple) -> tuple | None:
    """The key shared by arrays in one vector; `None` for arrays kept separate."""
    # Not on a mesh: a slice of a vector would not be sharded like its parameter.
    is_placed = not all(jax.typeof(x).sharding.mesh.empty for x in row)
    if is_placed or math.prod(row[0].shape) > SHORT:
        return None
    return tuple((x.dtype, varying(jax.typeof(x))) for x in row)


# XLA compiles several concatenations of this many arrays faster than one of all.
_MOST = 50


@ft.partial(jax.jit, static_argnums=1)
def _join(xs, axes):
    if len(xs) > _MOST:
        parts = [xs[i : i + _MOST] for i in range(0, len(xs), _MOST)]
        # Without the barrier XLA would merge them into one.
        xs = jax.lax.optimization_barrier([join(part, axes) for part in parts])
    return join(xs, axes)
