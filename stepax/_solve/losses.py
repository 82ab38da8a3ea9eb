"""Robust losses of a residual r: the value is C² rho((r / C)²) / 2 for a scale C.

    linear    rho(z) = z
    soft_l1   rho(z) = 2 (sqrt(1 + z) - 1)
    huber     rho(z) = z for z <= 1, otherwise 2 sqrt(z) - 1
    cauchy    rho(z) = log(1 + z)

Triggs et al., 2000, Bundle adjustment: a modern synthesis (DOI
10.1007/3-540-44480-7_21), section 4.3: with w = sqrt(rho' + 2 z rho''), the rows w J
and the residuals rho' r / w have the gradient of the value, and its curvature along r.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


# The least curvature, relative to rho'; that of a robust loss may be 0 or negative.
_LEAST = 2.0**-10


def _linear(z):
    return z, jnp.ones_like(z), jnp.zeros_like(z)


def _soft_l1(z):
    root = jnp.sqrt(1 + z)
    # The difference without cancellation.
    return 2 * z / (root + 1), 1 / root, -0.5 / root**3


def _huber(z):
    far = z > 1
    root = jnp.sqrt(jnp.where(far, z, 1))
    value = jnp.where(far, 2 * root - 1, z)
    return value, 1 / root, jnp.where(far, -0.5 / root**3, 0)


def _cauchy(z):
    slope = 1 / (1 + z)
    return jnp.log1p(z), slope, -(slope**2)


# Each maps z to rho and its first two derivatives.
LOSSES: dict[str, Callable] = {
    "linear": _linear,
    "huber": _huber,
    "soft_l1": _soft_l1,
    "cauchy": _cauchy,
}


def value_of(loss: str, scale: Any, r: jax.Array) -> jax.Array:
    """The value of a vector of residuals, a scalar."""
    if loss == "linear":
        return jnp.sum(0.5 * (r * r))
    scale = scale.astype(r.dtype)
    return 0.5 * scale**2 * jnp.sum(LOSSES[loss]((r / scale) ** 2)[0])


def weighted(loss: str, scale: Any, r: jax.Array) -> tuple[jax.Array | None, jax.Array]:
    """The factors of the rows of the Jacobian, `None` for 1, and scaled residuals."""
    if loss == "linear":
        return None, r
    z = (r / scale.astype(r.dtype)) ** 2
    _, first, second = LOSSES[loss](z)
    w = jnp.sqrt(jnp.maximum(first + 2 * z * second, _LEAST * first))
    return w, first / w * r
