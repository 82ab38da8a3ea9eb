"""A minimization problem, and three helpers for writing its function."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Problem(NamedTuple):
    """A smooth function of one vector, a start, and the minimum.

    name: in lower case; the number of variables is part of it where there are several.
    fun: the function, in the precision of its argument of shape (n,).
    x0: the published start, of shape (n,) in float64.
    minimum: the lowest value known.
    source: where all of this is published, or how the minimum was found.
    lower, upper: bounds of shape (n,), or `None`.
    """

    name: str
    fun: Callable[[jax.Array], jax.Array]
    x0: np.ndarray
    minimum: float
    source: str
    lower: np.ndarray | None = None
    upper: np.ndarray | None = None


def like(x: jax.Array, numbers: Any) -> jax.Array:
    """Data in the precision of x."""
    return jnp.asarray(numbers, x.dtype)


def indices(x: jax.Array) -> jax.Array:
    """1, ..., n in the precision of x."""
    return jnp.arange(1, x.size + 1, dtype=x.dtype)


def squares(*residuals: jax.Array) -> jax.Array:
    """The sum of squares of residuals, which are scalars or arrays."""
    return jnp.stack([jnp.sum(jnp.square(r)) for r in residuals]).sum()
