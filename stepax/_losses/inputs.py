"""Checks of the inputs of losses: dtypes, shapes, masks and labels."""

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from .._engine.arrays.numerics import is_known
from .._engine.base import is_array
from .._engine.trees.errors import describe


Axis: TypeAlias = int | tuple[int, ...] | None
Given: TypeAlias = Mapping[str, ArrayLike]

_INTEGERS = "integers, as `jnp.argmax(labels, -1)` makes of one-hot labels"
_ONE_HOT = "; for integer labels `jax.nn.one_hot(labels, classes)`"


def floats(floating: Given, real: Given | None = None) -> tuple[Any, ...]:
    """The arrays in a common dtype, float32 or wider, followed by the result's dtype.

    floating: arrays by name that must be floating point.
    real: arrays by name that may also be integers or booleans.

    Raises TypeError for other dtypes.
    """
    real = real or {}
    _check_kind(floating, (jnp.floating,), "floating-point numbers")
    _check_kind(real, (jnp.floating, jnp.integer, jnp.bool_), "real numbers")
    given = [*floating.values(), *real.values()]
    with jax.numpy_dtype_promotion("standard"):
        dtype = jnp.result_type(*given)
        wide = jnp.promote_types(dtype, jnp.float32)
    return *(jnp.asarray(x).astype(wide) for x in given), dtype


def floating(dtype: Any) -> Any:
    """The dtype of a result; float32 or wider for integers."""
    if jnp.issubdtype(dtype, jnp.floating):
        return dtype
    with jax.numpy_dtype_promotion("standard"):
        return jnp.promote_types(dtype, jnp.float32)


def _check_kind(given: Given, kinds: tuple, expected: str) -> None:
    for name, x in given.items():
        if x is None:
            raise TypeError(f"`{name}` is None, expected {expected}")
        if not is_array(x):
            raise TypeError(f"`{name}` is {describe(x)}, expected an array")
        dtype = jnp.result_type(x)
        if not any(jnp.issubdtype(dtype, kind) for kind in kinds):
            hint = _ONE_HOT * (name == "labels" and jnp.floating in kinds)
            raise TypeError(f"`{name}` is of dtype {dtype}, expected {expected}{hint}")


def normal_axes(axis: Axis, rank: int) -> tuple[int, ...]:
    """The axes as nonnegative numbers, all for `None`; each must exist, and once."""
    if axis is None:
        return tuple(range(rank))
    axes = axis if isinstance(axis, tuple | list) else (axis,)
    if any(not -rank <= a < rank for a in axes):
        raise ValueError(
            f"`axis` is {axis}, expected axes of an array of rank {rank}: "
            f"at least {-rank} and below {rank}"
        )
    found = tuple(a % rank for a in axes)
    if len(set(found)) < len(found):
        raise ValueError(f"`axis` is {axis}, expected each axis once")
    return found


def common_shape(
    shapes: Mapping[str, tuple[int, ...]], axis: Axis = ()
) -> tuple[int, ...]:
    """The shape that arrays broadcast to.

    So (n,) fits (m, n) and (1, n), and (n, 1) fits (1, m), as for all pairs; but (n,)
    does not fit (n, 1), with which it would silently broadcast to a matrix.

    axis: axes that are not broadcast, such as the class axis.

    Raises ValueError with names and shapes if they do not fit.
    """
    text = _shapes(shapes)
    common = _broadcast(*shapes.values())
    ranks, sizes = ({f(s) for s in shapes.values()} for f in (len, math.prod))
    is_column = len(ranks) > 1 and len(sizes) == 1 and common not in shapes.values()
    if common is None or is_column:
        hint = _ONE_HOT * ("labels" in shapes and len(shapes["labels"]) < max(ranks))
        raise ValueError(
            f"{text}, expected shapes where one broadcasts to the other{hint}"
        )
    axes = normal_axes(axis, len(common))
    whole = [(1,) * (len(common) - len(s)) + s for s in shapes.values()]
    if any(s[a] != common[a] for s in whole for a in axes):
        raise ValueError(f"{text}, expected equal sizes along `axis` {axis}")
    return common


def fit(arrays: Mapping[str, jax.Array], axis: Axis = ()) -> list[jax.Array]:
    common = common_shape({name: x.shape for name, x in arrays.items()}, axis)
    return [jnp.broadcast_to(x, common) for x in arrays.values()]


def check_same_shape(**arrays: jax.Array) -> None:
    shapes = {name: x.shape for name, x in arrays.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"{_shapes(shapes)}, expected equal shapes")


def _shapes(shapes):
    return " and ".join(f"`{name}` has shape {s}" for name, s in shapes.items())


def _broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


def mask(
    where: ArrayLike | None, shape: tuple[int, ...], axes: tuple[int, ...] = ()
) -> jax.Array | None:
    """`where` broadcast to the given shape; `None` if all elements are included.

    axes: class axes, which a mask with fewer axes than `shape` does not have.  If
        empty, the mask is broadcast like any array.

    Raises TypeError unless it is boolean, ValueError if it does not fit.
    """
    if where is None:
        return None
    _check_kind({"where": where}, (jnp.bool_,), "booleans")
    found = jnp.asarray(where)
    rank = len(shape)
    missing = rank - len(axes) - found.ndim
    if found.ndim < rank and axes and missing >= 0:
        found = jnp.expand_dims(found.reshape((1,) * missing + found.shape), axes)
    return broadcast("where", found, shape)


def broadcast(name: str, x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    if _broadcast(x.shape, shape) == shape:
        return jnp.broadcast_to(x, shape)
    raise ValueError(
        f"`{name}` has shape {x.shape}, expected one that broadcasts to {shape}"
    )


def whole_labels(
    labels: ArrayLike,
    classes: int,
    least: int = 0,
    known: bool = True,
    is_open: bool = False,
) -> jax.Array:
    """Integer labels; their values are checked if they are concrete.

    classes: the number of classes; every label must be below.
    least: the smallest valid label.
    known: whether to check values at all.
    is_open: whether smaller ones stand for no label, as -100 does elsewhere.

    Raises TypeError for other dtypes, ValueError for labels out of range.
    """
    _check_kind({"labels": labels}, (jnp.integer,), _INTEGERS)
    if known and np.size(labels) and is_known(labels):
        values = np.asarray(labels)
        low, high = values.min(), values.max()
        if (low < least and not is_open) or high >= classes:
            raise ValueError(
                f"`labels` has values from {low} to {high}, "
                f"expected integers of at least {least} and below {classes}"
            )
    return jnp.asarray(labels).astype(jnp.result_type(int))


def at_label(x: jax.Array, labels: jax.Array) -> jax.Array:
    return jnp.take_along_axis(x, labels[..., None], axis=-1)[..., 0]
