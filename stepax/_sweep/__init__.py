"""The points of a grid, and the traced runs: one program for each group of points.

Numbers are traced, so that other numbers do not need another program.  All other
values, such as strings, booleans and functions, are static: points are grouped by them.
"""

import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Real
from typing import Any, NamedTuple

import jax
import numpy as np

from .._engine.arrays.numerics import has_dtype
from .._engine.base import require_transformation
from .._engine.functions.calls import bind
from .._engine.functions.signatures import name_of, signature
from .._engine.trees import errors
from .._engine.xla.jaxprs import bytes_made, jaxpr_as_fun


Point = dict[str, Any]


class Group(NamedTuple):
    """The points that share a program.

    static: the values that they have in common.
    points: the indices of the points.
    numbers: a column of numbers (len(points),) for each traced name.
    """

    static: Point
    points: list[int]
    numbers: dict[str, np.ndarray]


def open_grid(grid: Any, make_tx: Callable) -> tuple[dict[str, list], list[Point]]:
    """The grid in lists of Python's scalars, and its points, the last name fastest."""
    if not isinstance(grid, Mapping):
        raise TypeError(
            f"`grid` is {errors.describe(grid)}, expected a dict from names to "
            "sequences of values, as in {'learning_rate': [1e-3, 1e-2]}"
        )
    if not grid:
        raise ValueError(
            "`grid` is empty, expected at least one name with its values, as in "
            "{'learning_rate': [1e-3, 1e-2]}"
        )
    grid = {name: _values(name, found) for name, found in grid.items()}
    rows = itertools.product(*grid.values())
    points = [dict(zip(grid, row, strict=True)) for row in rows]
    _check_points(make_tx, points)
    return grid, points


def _values(name: Any, found: Any) -> list:
    if not isinstance(name, str):
        raise TypeError(f"`grid` has the name {name!r}, expected a string")
    # The order of a set differs from run to run, and that of a dict has no meaning.
    is_other = isinstance(found, str | bytes | set | frozenset | Mapping)
    is_other |= not isinstance(found, Iterable)
    if is_other or has_dtype(found) and np.ndim(found) != 1:
        raise TypeError(
            f"`grid[{name!r}]` is {errors.describe(found)}, expected a sequence of "
            "values, as in [1e-3, 1e-2]"
        )
    values = [plain(x) for x in found]
    if not values:
        raise ValueError(f"`grid[{name!r}]` is empty, expected at least one value")
    return values


def plain(x: Any) -> Any:
    """A scalar of NumPy or JAX as one of Python; anything else as it is."""
    is_scalar = isinstance(x, np.generic | np.ndarray | jax.Array) and np.ndim(x) == 0
    return x.item() if is_scalar else x


def _check_points(make_tx: Callable, points: list[Point]) -> None:
    """Call `make_tx` with each point, because traced values are not checked later."""
    name = name_of(make_tx, type(make_tx).__name__)
    bind(make_tx, name, signature(make_tx), (), points[0])
    for point in points:
        try:
            require_transformation(make_tx(**point), f"`make_tx({shown(point)})`")
        except (TypeError, ValueError) as error:
            if type(error) not in (TypeError, ValueError):
                error.add_note(f"at the point {shown(point)} of `grid`")
                raise
            text = f"at the point {shown(point)} of `grid`: {error}"
            raise type(error)(text) from error


def shown(point: Point) -> str:
    return ", ".join(f"{name}={text_of(value)}" for name, value in point.items())


def text_of(x: Any) -> str:
    """`repr` without addresses in memory, so that it is the same in each process."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(x))


def is_number(x: Any) -> bool:
    return isinstance(x, Real) and not isinstance(x, bool)


def groups_of(
    grid: dict[str, list], points: dict[int, Point], static: Iterable[str] = ()
) -> list[Group]:
    """Points in groups of equal static values; static: numbers to be static, too."""
    static = set(static)
    found: dict[tuple, list[int]] = {}
    for i, point in points.items():
        key = (
            None if is_number(x) and name not in static else _place(grid[name], x)
            for name, x in point.items()
        )
        found.setdefault(tuple(key), []).append(i)
    groups = []
    for key, members in found.items():
        names = [name for name, at in zip(grid, key, strict=True) if at is None]
        rest = {k: x for k, x in points[members[0]].items() if k not in names}
        columns = {k: _column(grid[k], [points[i][k] for i in members]) for k in names}
        groups.append(Group(rest, members, columns))
    return groups


def _place(values: list, x: Any) -> int:
    """The index of the first value that is equal to `x` and of its type."""
    # As text, because `==` of tuples with arrays is ambiguous.
    text = type(x), repr(x)
    rows = enumerate(values)
    return next(i for i, y in rows if y is x or (type(y), repr(y)) == text)


def _column(values: list, numbers: list) -> np.ndarray:
    """The numbers of one name; integers only if there is no fraction in the grid."""
    is_whole = all(isinstance(x, int) for x in values if is_number(x))
    return np.asarray(numbers, jax.numpy.result_type(int if is_whole else float))


# --- programs ----------------------------------------------------------------------


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
