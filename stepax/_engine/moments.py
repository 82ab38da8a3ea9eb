"""Running means of gradients, and the numbers that make up for their zero start."""

from collections.abc import Callable
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


def bounded_square(g: jax.Array) -> jax.Array:
    """|g|², but the largest number where that is infinite, so that inf - inf is not."""
    return jnp.minimum(square(g), jnp.finfo(g.dtype).max)


def power(decay: ArrayLike, t: jax.Array) -> jax.Array:
    """decay^t for a step count t, as a float."""
    dtype = jnp.result_type(float) if jnp.ndim(decay) == 0 else None
    decay = jnp.asarray(decay, getattr(decay, "dtype", dtype))
    return jax.lax.pow(decay, t)


def bias_correction(decay: ArrayLike, t: jax.Array) -> jax.Array:
    """1 - decay^t, by which a mean that started at zero falls short at step t."""
    return 1 - power(decay, t)


def corrections(b1: ArrayLike, b2: ArrayLike, nesterov: bool) -> Callable:
    """From the step t to the corrections of Adam's two means, and that of the next."""

    def at(t):
        c1, c2 = bias_correction(b1, t), bias_correction(b2, t)
        return c1, c2, bias_correction(b1, t + 1) if nesterov else None

    return at


def corrected(
    mu: jax.Array, g: jax.Array, b1: ArrayLike, c1: Any, c1_next: Any
) -> jax.Array:
    """The mean gradient, corrected; one step ahead of it if `c1_next` is given."""
    if c1_next is None:
        return mu / c1
    return b1 * (mu / c1_next) + (1 - b1) * (g / c1)
