"""Arrays split over devices inside `jax.shard_map`, where a program sees its shard.

A sum over an array is then a sum over the local shard; the sum over the whole array
requires a collective, which names the mesh axes; so does a mean over them.
"""

import functools as ft
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike

from ..arrays.joined import grouped
from ..arrays.numerics import abs_sq, at_least, safe_sqrt, upcast
from ..arrays.placement import axis_names
from ..base import ArrayTree
from ..functions.signatures import NAMES
from ..trees import reduce
from ..xla import varying
from .leafwise import map_gradients


AxisName: TypeAlias = str | tuple[str, ...] | PartitionSpec | None
NAMES["AxisName"] = AxisName
# As for `jnp.sum`; `None` for all axes.
Axes: TypeAlias = int | Sequence[int] | None


class ArraySplit:
    """How arrays are split inside `jax.shard_map`.

    axis_name: the mesh axis, or axes, over which the first axis of arrays is split; or
        the `PartitionSpec` of arrays; `None` if they are not split.

    An array that is known to be replicated along an axis is not split over it.  With
    `check_vma=False`, `shard_map` does not know, and all arrays are assumed to be
    split.
    """

    def __init__(self, axis_name: AxisName):
        if axis_name is None:
            axis_name = PartitionSpec()
        elif not isinstance(axis_name, PartitionSpec):
            axis_name = PartitionSpec(axis_name)
        self.entries = [axis_names(entry) for entry in axis_name]

    def over(self, x: jax.Array, axis: Axes = None) -> tuple[str, ...]:
        """The mesh axes over which an array is split along the given axes."""
        if not self.entries:
            return ()
        axes = (axis,) if isinstance(axis, int) else axis
        at = range(x.ndim) if axes is None else [i % x.ndim for i in axes]
        # If all axes are requested, entries of the specification beyond the rank count,
        # too: a bias is split like the matrices, though it has fewer axes.
        entries = self.entries
        if len(at) < x.ndim:
            entries = [entries[i] for i in at if i < len(entries)]
        names = [name for entry in entries for name in entry]
        everywhere = {k: varying(jax.typeof(axis_index(k))) for k in names}
        split = varying(jax.typeof(x))
        return tuple(k for k in names if k in split or k not in everywhere[k])

    def shape(self, x: jax.Array) -> tuple[int, ...]:
        """The shape of the whole array."""
        if not (self.entries and _is_inside()):
            return jnp.shape(x)
        sizes = [_size(self.over(x, i)) for i in range(x.ndim)]
        return tuple(n * k for n, k in zip(x.shape, sizes, strict=True))

    def sum(self, part: jax.Array, x: jax.Array, axis: Axes = None) -> jax.Array:
        """The sum over some axes of the whole `x`, from that over the local shard."""
        names = self.over(x, axis)
        return jax.lax.psum(part, names) if names else part

    def mean(self, part: jax.Array, x: jax.Array, axis: Axes = None) -> jax.Array:
        """As `sum`, for means."""
        names = self.over(x, axis)
        return jax.lax.pmean(part, names) if names else part

    def norm(self, part: jax.Array, x: jax.Array, axis: Axes = None) -> jax.Array:
        """As `sum`, for norms, without overflow of squares."""
        return _norm_over(part, self.over(x, axis))

    def whole(self, x: jax.Array) -> jax.Array:
        """The whole array, on every device."""
        for i in range(x.ndim):
            if names := self.over(x, i):
                x = _gathered(x, names, i)
        return x

    def from_part(self, x: jax.Array) -> jax.Array:
        """As `whole`, but also valid outside `shard_map`, where arrays are whole."""
        return self.whole(x) if self.entries and _is_inside() else x

    def mine(self, whole: jax.Array, x: jax.Array) -> jax.Array:
        """The shard of an array at the position of `x`."""
        for i, n in enumerate(x.shape):
            if names := self.over(x, i):
                start = jax.lax.axis_index(names) * n
                whole = jax.lax.dynamic_slice_in_dim(whole, start, n, i)
        return whole

    def deal(
        self, many: Callable, parts: Sequence[Sequence], wholes: Sequence[Sequence]
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        """`many(parts, wholes)` of stacks, with the work divided among devices.

        parts: the matrices, and columns of arrays that are split like them.
        wholes: columns of further arrays, which every device has in full.
        """
        matrix = parts[0][0]
        # Along their second axis stacks hold the arrays of equal dtypes.
        kinds = _indices_by_dtype([column[0] for column in parts])
        moves = [(i + 2, self.over(matrix, i)) for i in range(matrix.ndim)]
        moves = [(i, names) for i, names in moves if names]

        def one_pack(stacks, wholes):
            nonlocal kinds
            made, others = many(_unpacked(stacks, kinds), wholes)
            kinds = _indices_by_dtype(made)
            return _packed(made, kinds), others

        stacks = _packed([jnp.stack(column) for column in parts], kinds)
        if not moves or (wholes and [names for _, names in moves] != [self._names]):
            # All stacks have to be divided in the same way: gather the matrices.
            for i, names in moves:
                stacks = [_gathered(x, names, i) for x in stacks]
            made, others = one_pack(self._shares(stacks), self._shares(wholes))
            stacks = [_gathered(x, self._names, 0) for x in made]
            mine = jax.vmap(lambda x: self.mine(x, matrix))
            made = [mine(x) for x in _unpacked(stacks, kinds)]
        else:
            stacks, others = self._exchanged(one_pack, moves, stacks, wholes)
            made = list(_unpacked(stacks, kinds))
        return made, [_gathered(x, self._names, 0) for x in others]

    def _exchanged(self, many, moves, stacks, wholes):
        """As `deal`, without gathering split arrays."""
        # Each exchange replaces a split along an axis of the matrices by one along the
        # stack; then every device has whole matrices, and fewer of them.
        n = math.prod(_size(names) for _, names in moves)
        stacks = [padded_stack(x, n) for x in stacks]
        exchange = ft.partial(jax.lax.all_to_all, tiled=True)
        for i, names in moves:
            stacks = [exchange(x, names, 0, i) for x in stacks]
        stacks, others = many(stacks, self._shares(wholes))
        for i, names in reversed(moves):
            stacks = [exchange(x, names, i, 0) for x in stacks]
        return stacks, others

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(name for entry in self.entries for name in entry)

    @property
    def number(self) -> int:
        """The number of devices among which arrays are split."""
        return _size(self._names)

    def _shares(self, columns: Sequence) -> list[jax.Array]:
        """Stacks of the part of each column that this device works on."""
        number = self.number

        def share(column):
            stack = padded_stack(column, number)
            n = stack.shape[0] // number
            start = jax.lax.axis_index(self._names) * n
            return jax.lax.dynamic_slice_in_dim(stack, start, n)

        return list(map(share, columns))

    def norm_of_all(self, arrays: list) -> jax.Array:
        """The norm of all arrays as one vector."""
        if not self.entries:
            return reduce.norm(arrays)
        # One collective for all arrays that are split over the same axes.
        groups = grouped(arrays, self.over)
        norms = [_norm_over(reduce.norm(xs), names) for names, xs in groups.items()]
        return norms[0] if len(norms) == 1 else reduce.norm(norms)


def _indices_by_dtype(xs: Sequence) -> list[list[int]]:
    return list(grouped(range(len(xs)), lambda i: xs[i].dtype).values())


def _packed(xs: Sequence, kinds: list[list[int]]) -> list[jax.Array]:
    """Arrays of each kind, stacked along their second axis."""
    return [jnp.stack([xs[i] for i in kind], 1) for kind in kinds]


def _unpacked(stacks: Sequence, kinds: list[list[int]]) -> tuple:
    """The inverse of `_packed`."""
    pairs = zip(stacks, kinds, strict=True)
    found = {i: x[:, n] for x, kind in pairs for n, i in enumerate(kind)}
    return tuple(found[i] for i in range(len(found)))


def _is_inside() -> bool:
    """Whether this is inside `shard_map`; `init` may be called outside."""
    return bool(jax.sharding.get_abstract_mesh().manual_axes)


def _gathered(x: jax.Array, names: tuple[str, ...], axis: int) -> jax.Array:
    # Typed as replicated, so that what follows from it may be returned so.
    return jax.lax.all_gather(x, names, axis=axis, tiled=True, to="invarying")


def padded_stack(xs: Sequence | jax.Array, number: int) -> jax.Array:
    """A stack of arrays, padded to a multiple of `number`."""
    # Padded with the first array: a stage need not be defined for zeros.
    return jnp.stack([*xs, *[xs[0]] * (-len(xs) % number)])


def axis_index(name: str, call: str = "`update`") -> jax.Array:
    """The position along an axis; raises an error that names a missing axis."""
    try:
        return jax.lax.axis_index(name)
    except NameError:
        raise ValueError(
            f"`axis_name` has {name!r}, which is not an axis here: call {call} inside "
            "`jax.shard_map`, over a mesh that has it"
        ) from None


def _size(names: tuple[str, ...]) -> int:
    return jax.lax.axis_size(names) if names else 1


def _norm_over(part: jax.Array, names: tuple[str, ...]) -> jax.Array:
    if not names:
        return part
    # Scaled by the largest, so that no square overflows; a norm of 0 or infinity stays.
    # `pmax` has no derivative, and the scale cancels.
    largest = jax.lax.pmax(jax.lax.stop_gradient(part), names)
    unit = jnp.where((largest > 0) & (largest < jnp.inf), largest, 1)
    return unit * safe_sqrt(jax.lax.psum((part / unit) ** 2, names))


def floored_norm(x: jax.Array, least: ArrayLike, parts: ArraySplit) -> jax.Array:
    """`safe_norm` at the cost of one sum: infinite where squares overflow."""
    return at_least(least, safe_sqrt(parts.sum(jnp.sum(abs_sq(x)), x)))


def floored_root_mean_square(
    x: jax.Array, least: ArrayLike, parts: ArraySplit
) -> jax.Array:
    """`safe_root_mean_squares` at the cost of one sum, as `floored_norm`."""
    mean = jnp.sum(abs_sq(x)) / max(x.size, 1)
    return at_least(least, safe_sqrt(parts.mean(mean, x)))


def weighted_mean(
    tree: ArrayTree, weight: ArrayLike | None, axis_name: str | tuple[str, ...]
) -> tuple[Any, ArrayLike | None]:
    """The mean of a tree over mesh axes, and the sum of the weights; all 1 for `None`.

    Values with weight 0 do not count, not even NaN.
    """
    require_axes(axis_name)
    if weight is None:
        return map_gradients(
            lambda x: jax.lax.pmean(upcast(x), axis_name).astype(x.dtype), tree
        ), None
    total = jax.lax.psum(jnp.asarray(weight), axis_name)
    part = jnp.where(total == 0, 0, weight / jnp.where(total == 0, 1, total))

    def mean(x):
        mine = part.astype(upcast(x.real).dtype) * upcast(x)
        mine = jnp.where(part == 0, jnp.zeros_like(mine), mine)
        return jax.lax.psum(mine, axis_name).astype(x.dtype)

    return map_gradients(mean, tree), total


def require_axes(axis_name: str | tuple[str, ...], call: str = "`update`") -> None:
    """Raise unless each name is an axis here."""
    for name in (axis_name,) if isinstance(axis_name, str) else axis_name:
        axis_index(name, call)
