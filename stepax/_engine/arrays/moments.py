"""Running means of gradients, and the numbers that make up for their zero start.

Where a decay is nearer to 1 than a thousandth, 1 - decay^t in float32 is mostly
rounding, 1.3 % off for 0.999999 at the first step, and is computed by `expm1`; where it
is nearer than 0.0001, the mean moves by (1 - decay) (x - mean), because float32 has not
the decay but 0.99999899.  Elsewhere float32 results are Optax's to the bit.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from .numerics import upcast


# Just below 0.001 and 0.0001: decays of 0.999 and 0.9999 are defaults of Optax, the
# latter of a mean that is not corrected, and there the bits are the same.
NEAR = 2.0**-10
VERY_NEAR = 2.0**-14


def is_number(decay: Any) -> bool:
    """Whether its value is known, in double precision."""
    return isinstance(decay, int | float | np.number)


def is_near_1(decay: Any, distance: float) -> bool:
    """Whether a decay is known to be below 1, and so near to it."""
    return is_number(decay) and 0 < 1 - float(decay) < distance


def one_minus(decay: Any) -> Any:
    """1 - decay, for a quotient: not 0."""
    least = 1e-12
    return max(1 - decay, least) if is_number(decay) else jnp.maximum(1 - decay, least)


def ema(mean: jax.Array, x: jax.Array, decay: ArrayLike) -> Any:
    """(1 - decay) x + decay mean."""
    if not is_near_1(decay, VERY_NEAR):
        return (1 - decay) * x + decay * mean
    # Of a mean that is infinite there is no difference.
    far = jnp.where(jnp.isinf(mean), x, x - mean)
    return mean + (1 - decay) * far


def square(g: jax.Array) -> jax.Array:
    """|g|², real also for complex g."""
    if jnp.iscomplexobj(g):
        return g.real**2 + g.imag**2
    return g**2


def bounded_square(g: jax.Array) -> jax.Array:
    """|g|², but the largest number where that is infinite, so that inf - inf is not."""
    return jnp.minimum(square(g), jnp.finfo(g.dtype).max)


def power(decay: ArrayLike, t: Any) -> jax.Array:
    """decay^t for a step count t, as a float."""
    return jax.lax.pow(_array(decay), t)


def _array(decay: ArrayLike) -> jax.Array:
    dtype = jnp.result_type(float) if jnp.ndim(decay) == 0 else None
    dtype = getattr(decay, "dtype", dtype)
    return jnp.asarray(decay, dtype and jax.dtypes.canonicalize_dtype(dtype))


def bias_correction(decay: ArrayLike, t: ArrayLike) -> jax.Array:
    """1 - decay^t, by which a mean that started at zero falls short at step t.

    1 for a decay of 1, as nothing enters such a mean and there is nothing to make up.
    """
    log, is_near = logarithm_near_1(decay)
    if is_near is False:
        return 1 - power(decay, t)
    dtype = _array(decay).dtype
    near = -jnp.expm1(log * jnp.asarray(t, upcast(jnp.zeros([], dtype)).dtype))
    near = jnp.where(log == 0, 1, near).astype(dtype)
    return near if is_near is True else jnp.where(is_near, near, 1 - power(decay, t))


def logarithm_near_1(decay: Any) -> tuple[Any, Any]:
    """log(decay) where it is nearer to 1 than `NEAR`, and whether it is.

    Of a number in double precision, of an array from 1 - decay, which is exact there.
    """
    if is_number(decay):
        is_near = float(decay) == 1 or is_near_1(decay, NEAR)
        return math.log(decay) if is_near else 0.0, is_near
    rest = upcast(1 - _array(decay))
    is_near = (rest >= 0) & (rest < NEAR)
    return jnp.log1p(jnp.where(is_near, -rest, -0.5)), is_near


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
