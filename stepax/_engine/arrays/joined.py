"""Joining arrays into vectors, and splitting vectors into arrays.

XLA compiles and launches each operation on an array separately, which for hundreds of
small arrays takes longer than the computation.  Packed trees, L-BFGS, `minimize`,
`flatten` and stages on whole matrices join arrays, each by its own rules.
"""

import functools as ft
import itertools as it
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from .placement import is_on_mesh


# A vector, or its shape, as under `jax.eval_shape`; float0 gradients are NumPy's.
Vector: TypeAlias = jax.Array | jax.ShapeDtypeStruct | np.ndarray

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def grouped(xs: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Lists of what has the same key, by these keys, in order."""
    groups: dict[K, list[T]] = {}
    for x in xs:
        groups.setdefault(key(x), []).append(x)
    return groups


class Joined:
    """Which arrays are joined into one vector; others keep their shape."""

    def __init__(self, kinds: Sequence[Hashable], shapes: Sequence[tuple]):
        """kinds: a key for each array; arrays with the same key are joined."""
        groups = grouped(range(len(kinds)), lambda i: kinds[i])
        self._groups = list(groups.values())
        self._shapes = shapes

    def join(self, xs: list, axes: int = 0) -> list:
        """The vectors; all arrays may have `axes` leading axes."""
        groups = ([xs[i] for i in at] for at in self._groups)
        return [x[0] if len(x) == 1 else join_many(x, axes) for x in groups]

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


# XLA compiles several concatenations of this many arrays faster than a single one.
_MOST = 50


@ft.partial(jax.jit, static_argnums=1)
def join_many(xs: list, axes: int = 0) -> Vector:
    """As `join`, for hundreds of arrays."""
    if len(xs) > _MOST:
        parts = [xs[i : i + _MOST] for i in range(0, len(xs), _MOST)]
        # Without the barrier XLA would merge them into one.
        xs = jax.lax.optimization_barrier([join(part, axes) for part in parts])
    return join(xs, axes)


# From so many arrays of one dtype on, each with at most so many elements, XLA compiles
# and runs a copy and one reduction faster than a reduction of each.
_MANY, _SMALL = 16, 2**12


def join_small(leaves: Sequence[Any]) -> list:
    """Arrays to be reduced to a scalar, many small ones of a dtype as one."""
    if len(leaves) < _MANY:
        return list(leaves)
    # Without `jit` they may be Python's numbers.
    arrays = [x if isinstance(x, jax.Array) else jnp.asarray(x) for x in leaves]
    # On a mesh each may be sharded differently.
    kinds = [
        (x.dtype,) if x.size <= _SMALL and not is_on_mesh(x) else i
        for i, x in enumerate(arrays)
    ]
    number = Counter(kinds)
    kinds = [x if number[x] >= _MANY else i for i, x in enumerate(kinds)]
    return Joined(kinds, [x.shape for x in arrays]).join(arrays)


def join(arrays: Sequence, axes: int = 0) -> Vector:
    """The concatenation of several arrays, which have `axes` leading axes."""
    first = arrays[0]
    if isinstance(first, jax.ShapeDtypeStruct):
        front = first.shape[:axes]
        size = sum(math.prod(x.shape[axes:]) for x in arrays)
        return jax.ShapeDtypeStruct((*front, size), first.dtype)
    if isinstance(first, np.ndarray):  # also the float0 gradients of integers
        return np.concatenate(_flat(arrays, axes), axes)
    # A single array needs no copy.
    return _flat(arrays, axes)[0] if len(arrays) == 1 else _join(list(arrays), axes)


def _flat(arrays, axes):
    return [x.reshape(*x.shape[:axes], -1) for x in arrays]


@ft.partial(jax.jit, static_argnums=1)
def _join(arrays, axes):
    return jnp.concatenate(_flat(arrays, axes), axes)


def cut(vector: Vector, start: int, stop: int) -> Vector:
    """A part of a vector, along its last axis."""
    if isinstance(vector, jax.ShapeDtypeStruct):
        shape = (*vector.shape[:-1], stop - start)
        return jax.ShapeDtypeStruct(shape, vector.dtype)
    if isinstance(vector, np.ndarray):
        return vector[..., start:stop]
    return jax.lax.slice_in_dim(vector, start, stop, axis=-1)


def split(vector: Vector, shapes: Sequence[tuple]) -> list:
    """The arrays of these shapes in a vector, each with the vector's leading axes."""
    front = vector.shape[:-1]
    shapes = tuple((*front, *shape) for shape in shapes)
    if isinstance(vector, jax.ShapeDtypeStruct):
        return [jax.ShapeDtypeStruct(shape, vector.dtype) for shape in shapes]
    if isinstance(vector, np.ndarray):
        return _shaped(np.split(vector, _starts(vector, shapes)[1:], -1), shapes)
    if len(shapes) == 1:
        return [vector.reshape(shapes[0])]
    return _jitted_split(vector, shapes)


def _shaped(parts, shapes):
    return [x.reshape(shape) for x, shape in zip(parts, shapes, strict=True)]


def _sizes(vector, shapes):
    front = math.prod(vector.shape[:-1])
    return [math.prod(shape) // front if front else 0 for shape in shapes]


def _starts(vector, shapes):
    return list(it.accumulate(_sizes(vector, shapes)[:-1], initial=0))


@ft.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _split(vector, shapes):
    """The arrays in a vector, as slices that XLA compiles once for each shape."""
    # With constant starts XLA compiles each slice by itself, which takes seconds for
    # hundreds.  Behind a barrier scalars are still folded; vectors of two are not.
    # Starts have 32 bits, so larger vectors are split at once.
    if vector.size > np.iinfo(np.int32).max:
        return _split_at_once(vector, shapes)
    starts = [np.array([x, 0], np.uint32) for x in _starts(vector, shapes)]
    starts = jax.lax.optimization_barrier(starts)
    front = vector.shape[:-1]
    zeros = [np.uint32(0)] * len(front)
    firsts = [jax.lax.squeeze(jax.lax.slice(x, [0], [1]), [0]) for x in starts]
    slices = [
        jax.lax.dynamic_slice(vector, [*zeros, first], [*front, size])
        for first, size in zip(firsts, _sizes(vector, shapes), strict=True)
    ]
    return _shaped(slices, shapes)


def _split_at_once(vector, shapes):
    sizes = _sizes(vector, shapes)
    return _shaped(jax.lax.split(vector, sizes, vector.ndim - 1), shapes)


@_split.defjvp
def _split_tangent(shapes, primals, tangents):
    # The derivative of a slice pads with zeros and adds, once for each array.  A single
    # `lax.split` computes the same, and its transpose is one concatenation.
    (vector,), (change,) = primals, tangents
    return _split(vector, shapes), _split_at_once(change, shapes)


_jitted_split = jax.jit(_split, static_argnums=1)
