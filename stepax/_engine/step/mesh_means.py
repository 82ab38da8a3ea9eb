"""Means over the axes of a mesh, inside `jax.shard_map`."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ..arrays.numerics import upcast
from .array_split import axis_index
from .leafwise import map_gradients


def weighted_mean(
    tree: Any, weight: ArrayLike | None, axis_name: str | tuple[str, ...]
) -> tuple[Any, ArrayLike | None]:
    """The mean of a tree over mesh axes, and the sum of the weights; all 1 for `None`.

    Values with weight 0 do not count, not even NaN.
    """
    require_axes(axis_name)
    if weight is None:
        mean = lambda x: jax.lax.pmean(upcast(x), axis_name).astype(x.dtype)
        return map_gradients(mean, tree), None
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
