"""Running means of gradients and their bias corrections; the last values of a quantity.

Decays close to 1 need care in float32:

1. Within 0.001 of 1, 1 - decay^t is mostly rounding error (1.3 % off for 0.999999 at
   the first step), so it is computed with `expm1`.
2. Within 0.0001, the mean moves by (1 - decay) (x - mean), because float32 cannot
   represent the decay itself: 0.999999 becomes 0.99999899.

Otherwise float32 results equal Optax's bit for bit.

The last values of a quantity, such as the norm of the gradient, are in the last axis of
a ring buffer: the n-th at place n modulo its length.
"""

import math
from collections.abc import Callable
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from .lifted import Lifted
from .numerics import upcast


# Just below 0.001 and 0.0001, so that Optax's defaults 0.999 and 0.9999 (the latter for
# a mean without bias correction) still give the same bits as in Optax.
NEAR = 2.0**-10
VERY_NEAR = 2.0**-14

# Scalars that are known in double precision.
_NUMBERS = (int, float, np.number, Lifted)


def is_number(decay: object) -> TypeGuard[int | float | np.number]:
    """Whether a decay is a Python or NumPy scalar, known in double precision."""
    return isinstance(decay, _NUMBERS)


def is_near_1(decay: ArrayLike, distance: float) -> bool:
    """Whether a decay is known to be below 1 by less than `distance`."""
    return is_number(decay) and 0 < 1 - decay < distance


def one_minus(decay: Any) -> Any:
    """1 - decay as a divisor: never 0."""
    # Far below the spacing of float32 near 1: there only a decay of 1 is affected.
    least = 1e-12
    return max(1 - decay, least) if is_number(decay) else jnp.maximum(1 - decay, least)


def ema(mean: jax.Array, x: jax.Array, decay: ArrayLike) -> Any:
    """(1 - decay) x + decay mean."""
    # `is_near_1` inlined, since this runs for each mean of each leaf.
    if not (isinstance(decay, _NUMBERS) and 0 < 1 - decay < VERY_NEAR):
        # In Optax's order, since another order rounds differently.
        return (1 - decay) * x + decay * mean
    # The difference to an infinite mean is NaN, or infinite with the wrong sign.
    far = jnp.where(jnp.isinf(mean), x, x - mean)
    return mean + (1 - decay) * far


def square(g: jax.Array) -> jax.Array:
    """|g|², which is real even for complex g."""
    if jnp.iscomplexobj(g):
        return g.real**2 + g.imag**2
    return g**2


def square_like(g: jax.Array, like: jax.Array) -> jax.Array:
    """|g|², or its means over rows where `like` has one number for each row."""
    x = square(g)
    if x.shape == like.shape:
        return x
    rest = tuple(i for i, n in enumerate(like.shape) if n == 1)
    return jnp.sum(x, rest, keepdims=True) / max(math.prod(x.shape[i] for i in rest), 1)


def bounded_square(g: jax.Array) -> jax.Array:
    """|g|², clamped to the largest finite float."""
    # A later difference of two squares would otherwise be inf - inf, which is NaN.
    return jnp.minimum(square(g), jnp.finfo(g.dtype).max)


def power(decay: ArrayLike, t: ArrayLike) -> jax.Array:
    """decay^t for a step count t, as a float."""
    # `lax.pow` accepts an integer exponent beside a float; `**` would promote it, which
    # strict promotion forbids.
    return jax.lax.pow(_array(decay), t)


def _array(decay: ArrayLike) -> jax.Array:
    dtype = getattr(decay, "dtype", jnp.result_type(float))
    if not jnp.issubdtype(dtype, jnp.inexact):
        dtype = jnp.result_type(float)  # an array of 0 or 1
    return jnp.asarray(decay, jax.dtypes.canonicalize_dtype(dtype))


def bias_correction(decay: ArrayLike, t: ArrayLike) -> jax.Array:
    """1 - decay^t, the factor by which a mean that started at zero is too small.

    1 for a decay of 1: such a mean stays at zero, and there is nothing to correct.
    """
    if isinstance(decay, float) and 1 - decay >= NEAR:
        return 1 - power(decay, t)  # nearly always; the rest adds five calls to a trace
    log, is_near = logarithm_near_1(decay)
    if is_near is False:
        return 1 - power(decay, t)
    dtype = _array(decay).dtype
    # 1 - decay^t = -expm1(t log decay), without the cancellation of the left side.
    near = -jnp.expm1(log * jnp.asarray(t, upcast(jnp.zeros([], dtype)).dtype))
    near = jnp.where(log == 0, 1, near).astype(dtype)
    return near if is_near is True else jnp.where(is_near, near, 1 - power(decay, t))


def logarithm_near_1(decay: Any) -> tuple[Any, Any]:
    """log(decay) where the decay is within `NEAR` of 1, and whether it is.

    A Python scalar is used in double precision.  For an array, log1p(-(1 - decay)) is
    accurate, because 1 - decay is exact there (Sterbenz).
    """
    if is_number(decay):
        is_near = bool(decay == 1) or is_near_1(decay, NEAR)
        return math.log(decay) if is_near else 0.0, is_near
    rest = upcast(1 - _array(decay))
    is_near = (rest >= 0) & (rest < NEAR)
    # -0.5 is a placeholder where the result is unused: log1p(-1) would be infinite, and
    # its derivative NaN even behind a `where`.
    return jnp.log1p(jnp.where(is_near, -rest, -0.5)), is_near


def corrections(b1: ArrayLike, b2: ArrayLike, nesterov: bool) -> Callable:
    """A function from the step t to the bias corrections of Adam's two means.

    Its third value is the correction of the first mean at t + 1, for Nesterov.
    """

    def at(t):
        c1, c2 = bias_correction(b1, t), bias_correction(b2, t)
        return c1, c2, bias_correction(b1, t + 1) if nesterov else None

    return at


def corrected(
    mu: jax.Array,
    g: jax.Array,
    b1: ArrayLike,
    c1: Any,
    c1_next: Any,
) -> jax.Array:
    """The bias-corrected mean gradient; one step ahead if `c1_next` is given."""
    if c1_next is None:
        return mu / c1
    return b1 * (mu / c1_next) + (1 - b1) * (g / c1)


def recorded(recent: jax.Array, n: jax.Array, x: jax.Array) -> jax.Array:
    """The buffer with one more value, which replaces the oldest."""
    # A state from a file may be of NumPy arrays.
    return jnp.asarray(recent).at[..., n % recent.shape[-1]].set(x)


def mean_and_std(recent: jax.Array, is_here: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The mean and standard deviation of the values present; 0 if there are none."""
    n = jnp.sum(is_here, -1)

    def over(x):
        return jnp.sum(jnp.where(is_here, x, 0), -1) / jnp.maximum(n, 1)

    mean = over(recent)
    return mean, jnp.sqrt(over(jnp.square(recent - mean[..., None])))


def percentile(recent: jax.Array, is_here: jax.Array, q: ArrayLike) -> jax.Array:
    """The q-th percentile, interpolated, of the values present, at least one."""
    x = jnp.sort(jnp.where(is_here, recent, jnp.inf))  # missing values come last
    last = jnp.maximum(jnp.sum(is_here, -1) - 1, 0).astype(x.dtype)
    at = jnp.asarray(q).astype(x.dtype) / 100 * last
    low, high = jnp.floor(at).astype(jnp.int32), jnp.ceil(at).astype(jnp.int32)
    return x[low] + jnp.where(high > low, (at - low) * (x[high] - x[low]), 0)
