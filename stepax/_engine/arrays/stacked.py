"""Arrays that are stacks of arrays: which axes are copies, and functions over these.

The layers of a scanned model, or experts, are one array with an axis more.  `axes` are
the axes along which the arrays of a stack follow each other, in the order in which they
are counted; without any, the array is one by itself.
"""

import functools as ft
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec

from .placement import axis_names, placed, sharding_of


Axes: TypeAlias = tuple[int, ...]


@jax.tree_util.register_static
@dataclass(frozen=True)
class Static:
    """The axes of several arrays, as an argument of a jitted function."""

    axes: tuple


def to_front(x: Any, axes: Axes) -> Any:
    """`x` with its stack axes in front; unchanged if they are there."""
    return jnp.moveaxis(x, axes, range(len(axes))) if axes else x


def from_front(x: jax.Array, axes: Axes) -> jax.Array:
    """The inverse of `to_front`."""
    return jnp.moveaxis(x, range(len(axes)), axes) if axes else x


def in_front(axes: Axes) -> Axes:
    """The stack axes of an array that has them in front."""
    return tuple(range(len(axes)))


def shape_of_one(shape: tuple[int, ...], axes: Axes) -> tuple[int, ...]:
    """The shape of one array of a stack of this shape."""
    return tuple(n for i, n in enumerate(shape) if i not in axes)


def shape_of_stack(shape: tuple[int, ...], axes: Axes) -> tuple[int, ...]:
    """The lengths of the stack axes."""
    return tuple(shape[i] for i in axes)


def number_in(x: Any, axes: Axes) -> int:
    """The number of arrays of a stack."""
    return math.prod(jnp.shape(x)[i] for i in axes)


def looped(f: Callable, axes: Axes) -> Callable:
    """As `mapped`, for one array after another, so that a branch stays a branch."""
    for _ in axes:
        f = ft.partial(_over, f)
    return f


def _over(f, *xs):
    return jax.lax.map(lambda x: f(*x), xs)


def joined(outer: Axes, inner: Axes) -> Axes:
    """The axes of a stack of stacks; `inner` are those of one array of `outer`."""
    left = [i for i in range(len(outer) + max(inner, default=0) + 1) if i not in outer]
    return (*outer, *(left[i] for i in inner))


def one_of(x: Any, axes: Axes) -> Any:
    """What masks and `wants` see of a stack: the shape and the dtype of one array."""
    if not axes:
        return x
    return jax.ShapeDtypeStruct(shape_of_one(jnp.shape(x), axes), jnp.result_type(x))


def mapped(f: Callable, axes: Axes) -> Callable:
    """`f` of each array of stacks, whose stack axes are in front."""
    for _ in axes:
        f = jax.vmap(f)
    return f


def _spec(x: Any) -> list:
    """The sharding of each axis of an array, as far as it is known."""
    sharding = jax.typeof(x).sharding if isinstance(x, Tracer) else sharding_of(x)
    spec = sharding.spec if isinstance(sharding, NamedSharding) else ()
    return [*spec, *[None] * (len(x.shape) - len(spec))]


def _without(spec: list, others: list) -> list:
    """A sharding of axes, unless mesh axes of it are used by others."""
    used = {name for entry in others for name in axis_names(entry)}
    return [None if used.intersection(axis_names(x)) else x for x in spec]


def alike_in_front(xs: list, axes: Axes) -> list:
    """Arrays with stack axes in front, divided alike along explicit mesh axes."""
    n = len(axes)
    specs = [jax.typeof(x).sharding.spec for x in xs]
    first = next((list(spec[:n]) for spec in specs if any(spec[:n])), None)
    if first is None:
        return xs

    def one(x):
        if not any(jax.typeof(x).sharding.mesh.axis_names):
            return x
        spec = PartitionSpec(*first, *_without(_spec(x)[n:], first))
        mesh = jax.typeof(x).sharding.mesh
        return jax.sharding.reshard(x, NamedSharding(mesh, spec))

    return list(map(one, xs))


def along_stack(p: Any, x: jax.Array, axes: Axes) -> jax.Array:
    """`x`, whose first axes are the stack axes of `p`, divided along them as `p` is."""
    spec = _spec(p)
    if any(spec):
        first = [spec[i] for i in axes]
        return placed(
            p, x, PartitionSpec(*first, *_without(_spec(x)[len(axes) :], first))
        )
    if not isinstance(p, Tracer) or not math.prod(p.shape):
        return x
    # With automatic axes: a selection that never takes `p`; see `shard_like`.
    like = to_front(p, axes)
    like = jnp.real(like).max(range(len(axes), like.ndim))
    like = like.reshape(*like.shape, *[1] * (x.ndim - like.ndim)).astype(x.dtype)
    return jnp.where(jnp.zeros(x.shape, bool), like, x)
