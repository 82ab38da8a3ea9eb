"""Arrays in parts inside of `jax.shard_map`, where a program sees one part of each.

A sum over an array is then one over its part, and the sum of the whole has to be asked
for, by the name of the mesh axis.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike

from ..arrays.branch import varying
from ..arrays.numerics import abs_sq, safe_sqrt, strong_type
from ..functions.signatures import NAMES
from ..trees import reduce


AxisName: TypeAlias = str | tuple[str, ...] | PartitionSpec | None
NAMES["AxisName"] = AxisName


class ArraySplit:
    """How arrays are split inside of `jax.shard_map`.

    axis_name: of the mesh axis, or axes, over which the first axis of arrays is split;
        or the `PartitionSpec` of arrays; `None` if nothing is.

    An array that is known to be the same on all devices of an axis is whole.  Where
    `shard_map` does not check that, all are taken to be in parts.
    """

    def __init__(self, axis_name: AxisName):
        if axis_name is None:
            axis_name = PartitionSpec()
        elif not isinstance(axis_name, PartitionSpec):
            axis_name = PartitionSpec(axis_name)
        self.entries = [_names(entry) for entry in axis_name]

    def over(self, x: jax.Array, axis: Any = None) -> tuple[str, ...]:
        """The mesh axes over which an array is split along some of its axes."""
        at = range(x.ndim) if axis is None else _indices(axis, x.ndim)
        # All of a vector is split however the matrices are.
        entries = self.entries if len(at) == x.ndim else [self._entry(i) for i in at]
        return tuple(name for entry in entries for name in entry if _is_split(x, name))

    def _entry(self, i: int) -> tuple[str, ...]:
        return self.entries[i] if i < len(self.entries) else ()

    def shape(self, x: jax.Array) -> tuple[int, ...]:
        """The shape of the whole array, also outside of `shard_map`, as for `init`."""
        inside = jax.sharding.get_abstract_mesh().manual_axes
        if not inside:
            return jnp.shape(x)
        sizes = [_size(self.over(x, i)) for i in range(x.ndim)]
        return tuple(n * k for n, k in zip(x.shape, sizes, strict=True))

    def sum(self, part: jax.Array, x: jax.Array, axis: Any = None) -> jax.Array:
        """The sum over some axes of `x`, from that over them of its part."""
        names = self.over(x, axis)
        return jax.lax.psum(part, names) if names else part

    def mean(self, part: jax.Array, x: jax.Array, axis: Any = None) -> jax.Array:
        """The same of means."""
        names = self.over(x, axis)
        return jax.lax.pmean(part, names) if names else part

    def norm(self, part: jax.Array, x: jax.Array, axis: Any = None) -> jax.Array:
        """The same of norms, of which none overflows on the way."""
        return _norm_over(part, self.over(x, axis))

    def whole(self, x: jax.Array) -> jax.Array:
        """All parts of an array, on every device."""
        for i in range(x.ndim):
            if names := self.over(x, i):
                # Typed as replicated, so that what follows from it may be returned so.
                x = jax.lax.all_gather(x, names, axis=i, tiled=True, to="invarying")
        return x

    def mine(self, whole: jax.Array, x: jax.Array) -> jax.Array:
        """The part of an array that has the place of `x`."""
        for i, n in enumerate(x.shape):
            if names := self.over(x, i):
                start = jax.lax.axis_index(names) * n
                whole = jax.lax.dynamic_slice_in_dim(whole, start, n, i)
        return whole

    def deal(self, many: Callable, columns: list[tuple]) -> list[jax.Array]:
        """`many` of stacks, each device having worked on its share of them.

        columns: the matrices, and then what is kept for each, which is whole on every
            device.
        """
        matrices = columns[0]
        moves = [(i, self.over(matrices[0], i)) for i in range(matrices[0].ndim)]
        moves = [(i + 1, names) for i, names in moves if names]
        if not moves:
            return self._shared_out(many, columns)
        if len(columns) > 1:
            # All have to be cut alike, and a slot is not exchanged: gather instead.
            whole = [tuple(map(self.whole, matrices)), *columns[1:]]
            made, *slots = self._shared_out(many, whole)
            pairs = zip(made, matrices, strict=False)
            return [jnp.stack([self.mine(y, x) for y, x in pairs]), *slots]
        stack = padded_stack(matrices, math.prod(_size(names) for _, names in moves))
        for i, names in moves:
            stack = jax.lax.all_to_all(stack, names, 0, i, tiled=True)
        (stack,) = many(stack)
        for i, names in reversed(moves):
            stack = jax.lax.all_to_all(stack, names, i, 0, tiled=True)
        return [stack]

    def _shared_out(self, many, columns):
        """The same of arrays that all devices have."""
        names = tuple(n for entry in self.entries for n in entry)
        stacks = [padded_stack(column, _size(names)) for column in columns]
        n = stacks[0].shape[0] // _size(names)
        start = jax.lax.axis_index(names) * n
        share = [jax.lax.dynamic_slice_in_dim(x, start, n) for x in stacks]
        gather = lambda x: jax.lax.all_gather(x, names, tiled=True, to="invarying")
        return list(map(gather, many(*share)))

    def norm_of_all(self, arrays: list) -> jax.Array:
        """The norm of all arrays, taken as one vector."""
        groups = {}
        for x in arrays:
            groups.setdefault(self.over(x), []).append(x)
        norms = [_norm_over(reduce.norm(xs), names) for names, xs in groups.items()]
        return norms[0] if len(norms) == 1 else reduce.norm(norms)


def padded_stack(xs: Sequence, number: int) -> jax.Array:
    """A stack of arrays, and of zeros up to a multiple of a number."""
    spare = -len(xs) % number
    return jnp.stack([*xs, *[jnp.zeros_like(xs[0])] * spare])


def _names(entry: Any) -> tuple[str, ...]:
    if entry is None:
        return ()
    return tuple(entry) if isinstance(entry, tuple) else (entry,)


def _indices(axis: Any, ndim: int) -> Sequence[int]:
    axes = axis if isinstance(axis, tuple | list) else (axis,)
    return [i % ndim for i in axes]


def _is_split(x: jax.Array, name: str) -> bool:
    try:
        index = jax.lax.axis_index(name)
    except NameError:
        raise ValueError(
            f"`axis_name` has {name!r}, which is no axis here: call `update` inside of "
            "`jax.shard_map`, over a mesh that has it"
        ) from None
    return name in varying(jax.typeof(x)) or name not in varying(jax.typeof(index))


def _size(names: tuple[str, ...]) -> int:
    return jax.lax.axis_size(names) if names else 1


def _norm_over(part: jax.Array, names: tuple[str, ...]) -> jax.Array:
    if not names:
        return part
    largest = jax.lax.pmax(jax.lax.stop_gradient(part), names)
    unit = jnp.where((largest > 0) & (largest < jnp.inf), largest, 1)
    return unit * safe_sqrt(jax.lax.psum((part / unit) ** 2, names))


def floored_norm(x: jax.Array, least: ArrayLike, parts: ArraySplit) -> jax.Array:
    """`safe_norm` at the cost of one sum: infinite where squares overflow."""
    return _at_least(least, safe_sqrt(parts.sum(jnp.sum(abs_sq(x)), x)))


def floored_root_mean_square(
    x: jax.Array, least: ArrayLike, parts: ArraySplit
) -> jax.Array:
    """`safe_root_mean_squares` at the cost of one sum, as `floored_norm`."""
    mean = jnp.sum(abs_sq(x)) / max(x.size, 1)
    return _at_least(least, safe_sqrt(parts.mean(mean, x)))


def _at_least(least, measured):
    """A measure or its lower bound, with a finite derivative where it is 0."""
    with jax.numpy_dtype_promotion("standard"):
        return strong_type(jnp.where(measured <= least, least, measured))
