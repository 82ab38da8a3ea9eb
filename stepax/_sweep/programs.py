"""The traced runs of a sweep: one program for each group of points."""

import hashlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from .._engine.xla.jaxprs import bytes_made, jaxpr_as_fun
from .grid import Group, Point, groups_of, shown, text_of


class Program(NamedTuple):
    """A traced run of one point and seed.

    group: the points that share the program.
    jaxpr: maps the numbers of a point, by name, and a seed to the losses.
    """

    group: Group
    jaxpr: Any

    @property
    def dtype(self) -> np.dtype:
        return self.jaxpr.out_avals[0].dtype

    def __call__(self, numbers: dict, seed: Any) -> jax.Array:
        flat = jax.tree.leaves((numbers, seed))
        return jaxpr_as_fun(self.jaxpr)(*flat)[0]

    def fingerprint(self) -> str:
        """A digest of all that the losses depend on, the same in each process."""
        digest = hashlib.sha256(text_of(self.jaxpr.jaxpr).encode())
        for x in self.jaxpr.consts:
            is_key = jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key)
            digest.update(np.asarray(jax.random.key_data(x) if is_key else x).tobytes())
        for column in self.group.numbers.values():
            digest.update(column.tobytes())
        return digest.hexdigest()

    def bytes(self) -> int:
        """A bound on the memory of a run: all arrays of a step at once."""
        return bytes_made(self.jaxpr.jaxpr)


def programs_of(
    lane_of: Callable[[Point], Callable], grid: dict[str, list], points: list[Point]
) -> Iterator[Program]:
    """The programs of all points.

    lane_of: maps static values to a function of the other values and a seed.
    """
    for group in groups_of(grid, dict(enumerate(points))):
        try:
            yield _trace(lane_of, group)
            continue
        # Any error: a number that is not concrete may break anything.
        except Exception:
            first = points[group.points[0]]
            static = [x for x in group.numbers if not _may_trace(lane_of, first, x)]
            if not static:
                raise
        own = {i: points[i] for i in group.points}
        for part in groups_of(grid, own, static):
            try:
                yield _trace(lane_of, part)
            except Exception as error:
                at = shown(points[part.points[0]])
                error.add_note(f"at the point {at} of `grid`")
                raise


def _trace(lane_of, group):
    like = {k: jax.ShapeDtypeStruct((), x.dtype) for k, x in group.numbers.items()}
    seed = jax.ShapeDtypeStruct((), np.uint32)
    return Program(group, jax.make_jaxpr(lane_of(group.static))(like, seed))


def _may_trace(lane_of, point, name):
    """Whether one number may be traced if all others are concrete."""
    rest = {k: x for k, x in point.items() if k != name}
    (group,) = groups_of({k: [x] for k, x in point.items()}, {0: point}, rest)
    try:
        _trace(lane_of, group)
    except Exception:
        return False
    return True
