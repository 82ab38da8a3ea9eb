"""Counts."""

import jax.numpy as jnp


def safe_increment(count):
    top = jnp.asarray(jnp.iinfo(count.dtype).max, count.dtype)
    return jnp.where(count < top, count + jnp.ones([], count.dtype), top)
