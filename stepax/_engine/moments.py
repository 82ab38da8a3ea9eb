"""Running means of gradients, and the numbers that make up for their zero start."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike


def ema(mean: jax.Array, x: jax.Array, decay: ArrayLike) -> Any:
    """(1 - decay) x + decay mean."""
    return (1 - decay) * x + decay * mean


def square(g: jax.Array) -> jax.Array:
    """|g|², real also for complex g."""
    if jnp.iscomplexobj(g):
        return g.real**2 + g.imag**2
    return g**2


def power(decay: ArrayLike, t: jax.Array) -> jax.Array:
    """decay^t for a step count t, as a float."""
    dtype = jnp.result_type(float) if jnp.ndim(decay) == 0 else None
    decay = jnp.asarray(decay, getattr(decay, "dtype", dtype))
    return jax.lax.pow(decay, t)


def bias_correction(decay: ArrayLike, t: jax.Array) -> jax.Array:
    """1 - decay^t, by which a mean that started at zero falls short at step t."""
    return 1 - power(decay, t)
