"""A function that is the identity, but scales what is differentiated through it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ._engine.arrays.numerics import is_numeric
from ._engine.base.protocol import is_array
from ._engine.functions.calls import explain_misuse


@explain_misuse
def scale_gradient(inputs: Any, scale: ArrayLike) -> Any:
    """The inputs as they are, whose derivative is multiplied by a number.

        f(x) = x,   ∂f/∂x = scale

    Unlike in Optax the number may be traced, and the derivative be taken forward too.

    inputs: a tree; what has no derivative in it is left alone.
    scale: a number; the derivative for 0 is 0 even where it is NaN or infinite behind.

    Raises ValueError if `scale` is an array of numbers.
    """
    if np.shape(scale) != ():
        raise ValueError(f"`scale` has shape {np.shape(scale)}, expected a number")
    is_known = isinstance(scale, int | float | np.generic)
    if is_known and scale == 1:
        return inputs

    def leaf(x):
        if not is_array(x) or not is_numeric(x):
            return x
        if not jnp.issubdtype(jnp.result_type(x), jnp.inexact):
            return x
        if is_known and scale == 0:
            return jax.lax.stop_gradient(x)
        return _scaled(jnp.asarray(x), jnp.asarray(scale))

    return jax.tree.map(leaf, inputs)


@jax.custom_jvp
def _scaled(x, scale):
    return x


@_scaled.defjvp
def _tangent(primals, tangents):
    (x, scale), (dx, _) = primals, tangents
    return _scaled(x, scale), scale.astype(dx.dtype) * dx
