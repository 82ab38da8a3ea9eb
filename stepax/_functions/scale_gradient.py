"""An identity function that scales the gradient."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from .._engine.arrays.numerics import is_numeric
from .._engine.base import is_array
from .._engine.functions.calls import explain_misuse


@explain_misuse
def scale_gradient(inputs: Any, scale: ArrayLike) -> Any:
    """The identity, with its derivative multiplied by a scalar.

        f(x) = x,   ∂f/∂x = scale

    Unlike in Optax, `scale` may be traced, and forward-mode derivatives work, too.

    inputs: a tree; leaves without a derivative are unchanged.
    scale: a scalar; 0 gives a derivative of 0, even for NaN or infinite cotangents.

    Raises ValueError if `scale` is not a scalar.
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
