"""The last values of a quantity, such as the norm of the gradient, and statistics.

The values are in the last axis of a ring buffer: the n-th at place n modulo its length.
"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike


def recorded(recent: jax.Array, n: jax.Array, x: jax.Array) -> jax.Array:
    """The buffer with one more value, which replaces the oldest."""
    return recent.at[..., n % recent.shape[-1]].set(x)


def mean_and_std(recent: jax.Array, is_here: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The mean and standard deviation of the values present; 0 if there are none."""
    n = jnp.sum(is_here, -1)
    over = lambda x: jnp.sum(jnp.where(is_here, x, 0), -1) / jnp.maximum(n, 1)
    mean = over(recent)
    return mean, jnp.sqrt(over(jnp.square(recent - mean[..., None])))


def percentile(recent: jax.Array, is_here: jax.Array, q: ArrayLike) -> jax.Array:
    """The q-th percentile, interpolated, of the values present, at least one."""
    x = jnp.sort(jnp.where(is_here, recent, jnp.inf))  # missing values come last
    last = jnp.maximum(jnp.sum(is_here, -1) - 1, 0).astype(x.dtype)
    at = jnp.asarray(q).astype(x.dtype) / 100 * last
    low, high = jnp.floor(at).astype(jnp.int32), jnp.ceil(at).astype(jnp.int32)
    return x[low] + jnp.where(high > low, (at - low) * (x[high] - x[low]), 0)
