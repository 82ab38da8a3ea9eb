"""Numbers that a user passes, such as a weight with a step or a number of seeds."""

import math
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from ..base.protocol import as_array, is_array
from .errors import describe


def real_array(x: Any, name: str) -> Any:
    """`x` as an array; NumPy's if its values are known, so that they can be checked.

    name: its description, for errors.
    """
    if not is_array(x):
        raise TypeError(f"{name} is {describe(x)}, expected a number")
    x = as_array(x)
    x = x if isinstance(x, jax.Array) else np.asarray(x)
    if jnp.iscomplexobj(x):
        raise ValueError(f"{name} is complex, expected a real scalar")
    return x


def real_scalar(x: Any, name: str) -> Any:
    """As `real_array`, for a scalar."""
    x = real_array(x, name)
    if x.shape:
        raise ValueError(f"{name} is of shape {x.shape}, expected a real scalar")
    return x


def weights(x: Any, name: str) -> ArrayLike:
    """Weights in float32, which are finite and at least 0.

    Invalid weights that are only found in a compiled program become NaN.
    """
    if isinstance(x, Tracer):
        x = x.astype(jnp.float32)
        return jnp.where((x >= 0) & (x < jnp.inf), x, jnp.nan)
    known = np.asarray(x, np.float32)
    bad = known[~((known >= 0) & (known < np.inf))]
    if bad.size:
        raise ValueError(
            f"{name} is {bad[0]:g}, expected a finite number that is at least 0"
        )
    return known


def share(total: ArrayLike, weight: ArrayLike, dtype: Any) -> Any:
    """`total / weight` for an array of a dtype; exact if it is a small integer."""
    # In float32 or wider, and rounded once: equal weights give the same bits as no
    # weights.
    real = jnp.finfo(dtype).dtype
    wide = real if real == jnp.float64 else jnp.float32
    ratio = jnp.asarray(total).astype(wide) / jnp.asarray(weight).astype(wide)
    return ratio.astype(real)


def whole(name: str, x: Any, most: float = math.inf, least: int = 1) -> int:
    """`x` as a Python integer; NumPy's integers are accepted."""
    try:
        found = None if isinstance(x, bool | np.bool_) else operator.index(x)
    except TypeError:
        found = None
    if found is None or not least <= found <= most:
        upto = "or more" if most == math.inf else f"to {most}"
        raise ValueError(f"`{name}` is {x!r}, expected a whole number, {least} {upto}")
    return found
