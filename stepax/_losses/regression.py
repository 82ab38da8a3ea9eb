"""Regression losses: squared error, Huber and log-cosh.

Huber, 1964, Robust Estimation of a Location Parameter (DOI:10.1214/aoms/1177703732);
Chen et al., 2019, Log Hyperbolic Cosine Loss Improves Variational Auto-Encoder, for
`log_cosh`, which is accurate near 0, where Optax's has rounding errors of 6e-8.
"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._engine.factories import ranges
from .._engine.functions.calls import explain_misuse
from .inputs import check_same_shape, fit, floats


@explain_misuse
def squared_error(
    predictions: ArrayLike, targets: ArrayLike | None = None
) -> jax.Array:
    """The elementwise squared error: (p - t)².

    predictions: the predictions p.
    targets: t, shaped like the predictions; `None` for zeros.

    Raises TypeError unless the predictions are floating point, ValueError where the
    shapes differ.
    """
    error, dtype = _error(predictions, targets, same_shape=True)
    return jnp.square(error).astype(dtype)


@explain_misuse
def l2_loss(predictions: ArrayLike, targets: ArrayLike | None = None) -> jax.Array:
    """Half the elementwise squared error: (p - t)² / 2.

    Arguments: those of `squared_error`.

    Raises TypeError unless the predictions are floating point, ValueError where the
    shapes differ.
    """
    error, dtype = _error(predictions, targets, same_shape=True)
    return (0.5 * jnp.square(error)).astype(dtype)


@explain_misuse
def huber_loss(
    predictions: ArrayLike, targets: ArrayLike | None = None, *, delta: ArrayLike = 1.0
) -> jax.Array:
    """The Huber loss: quadratic near 0, linear beyond; the gradient is within ±delta.

        e = p - t
        e² / 2                      for |e| <= delta
        delta (|e| - delta / 2)     elsewhere

    predictions: the predictions p.
    targets: t, broadcast to the shape of the predictions; `None` for zeros.
    delta: the error at which the loss becomes linear, above 0; with infinity it never
        does.

    Raises TypeError unless the predictions are floating point, ValueError if
    shapes do not fit.
    """
    ranges.check("huber_loss", {"delta": delta}, {"delta": ranges.POSITIVE_CAP})
    error, dtype = _error(predictions, targets)
    delta = jnp.asarray(delta, error.dtype)
    # Zeros where the other form holds: its derivative may be infinite there, or NaN.
    is_far = jnp.abs(error) > delta
    near, far = jnp.where(is_far, 0, error), jnp.where(is_far, jnp.abs(error), 0)
    slope = jnp.where(is_far, delta, 0)
    return (near * (0.5 * near) + slope * (far - 0.5 * slope)).astype(dtype)


@explain_misuse
def log_cosh(predictions: ArrayLike, targets: ArrayLike | None = None) -> jax.Array:
    """The log-cosh loss: log cosh(p - t).

    Arguments: those of `huber_loss`.

    Raises TypeError unless the predictions are floating point, ValueError if
    shapes do not fit.
    """
    error, dtype = _error(predictions, targets)
    return _log_cosh(error).astype(dtype)


def _error(predictions, targets, same_shape=False):
    if targets is None:
        return floats({"predictions": predictions})
    p, t, dtype = floats({"predictions": predictions}, {"targets": targets})
    if same_shape:
        check_same_shape(predictions=p, targets=t)
    p, t = fit({"predictions": p, "targets": t})
    return p - t, dtype


@jax.custom_jvp
def _log_cosh(x):
    size = jnp.abs(x)
    near = jnp.log1p(2 * jnp.square(jnp.sinh(jnp.minimum(size, 1) / 2)))
    far = size + jnp.log1p(jnp.exp(-2 * size)) - jnp.log(2.0).astype(x.dtype)
    return jnp.where(size < 1, near, far)


@_log_cosh.defjvp
def _(primals, tangents):
    (x,), (dx,) = primals, tangents
    return _log_cosh(x), jnp.tanh(x) * dx
