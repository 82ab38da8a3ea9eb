"""Short arrays in a few vectors, on which a loop takes as few operations as on one.

XLA compiles and starts each operation on an array by itself, which for hundreds of
short ones takes longer than to compute them.  What lies on a mesh of devices stays by
itself: to gather it would be to send it.
"""

import functools as ft
import math
from collections.abc import Hashable, Sequence

import jax

from .._engine.arrays.branch import varying
from .._engine.trees.packed import join, split


# Entries of an array above which a pass over it takes longer than it takes to start
# one, and up to which it is sent in no time, wherever it lies.
SHORT = 4096


class Gathering:
    """Which of some arrays lie in one vector; those by themselves keep their shape."""

    def __init__(self, kinds: Sequence[Hashable], shapes: Sequence[tuple]):
        """kinds: for each array; those of one kind lie one after another."""
        groups: dict[Hashable, list[int]] = {}
        for i, kind in enumerate(kinds):
            groups.setdefault(kind, []).append(i)
        self._groups = list(groups.values())
        self._shapes = shapes

    def join(self, xs: list, axes: int = 0) -> list:
        """The vectors of some arrays, which may all have more axes in front."""
        several = lambda at: _join([xs[i] for i in at], axes)
        return [xs[at[0]] if len(at) == 1 else several(at) for at in self._groups]

    def first(self, xs: list) -> list:
        """The first array of each vector."""
        return [xs[at[0]] for at in self._groups]

    def split(self, vectors: list) -> list:
        """The arrays in some vectors, which may have more axes in front."""
        found: list = [None] * len(self._shapes)
        for at, x in zip(self._groups, vectors, strict=True):
            shapes = [self._shapes[i] for i in at]
            parts = [x] if len(at) == 1 else split(x, shapes)
            for i, part in zip(at, parts, strict=True):
                found[i] = part
        return found


def gather_short(*columns: list) -> Gathering:
    """Short arrays together, if they lie on no mesh and their dtypes agree.

    columns: lists of arrays, which may have more axes in front than the first.
    """
    rows = list(zip(*columns, strict=True))
    kinds = [_kind(row) or i for i, row in enumerate(rows)]
    return Gathering(kinds, [x.shape for x in columns[0]])


def _kind(row: tuple) -> tuple | None:
    """What arrays in one vector have in common; `None` of one that stays by itself."""
    # On a mesh, because what is cut out of a vector would not lie as its parameter.
    is_placed = not all(jax.typeof(x).sharding.mesh.empty for x in row)
    if is_placed or math.prod(row[0].shape) > SHORT:
        return None
    return tuple((x.dtype, varying(jax.typeof(x))) for x in row)


# XLA takes less time to compile what joins several times so many arrays.
_MOST = 50


@ft.partial(jax.jit, static_argnums=1)
def _join(xs, axes):
    if len(xs) > _MOST:
        parts = [xs[i : i + _MOST] for i in range(0, len(xs), _MOST)]
        # Without the barrier it would join all at once.
        xs = jax.lax.optimization_barrier([join(part, axes) for part in parts])
    return join(xs, axes)
