"""Checks of arguments, and phases of a schedule."""

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .._engine.arrays.precision import compute_dtype, widen
from .._engine.trees import errors


def phase(count, begin, steps):
    """The steps done and the steps in total; a traced phase of 0 steps is not begun."""
    t = jnp.maximum(count - jnp.maximum(begin, 0), 0)
    if not isinstance(steps, Tracer):
        return t, steps
    return jnp.where(steps > 0, t, 0), jnp.where(steps > 0, steps, 1)


def wide(x):
    """A value in float32 if it is in half precision, which has few digits."""
    return widen(x, compute_dtype(x)) if hasattr(x, "dtype") else x


def nonzero(x):
    """`x`, or 1 where it is 0, as a safe divisor."""
    if isinstance(x, Tracer):
        return jnp.where(x == 0, jnp.ones_like(x), x)
    return x if np.all(np.asarray(x) != 0) else 1


def positive(name, value, must="", hint=""):
    """Whether a value is above 0; traced values are assumed to be."""
    if isinstance(value, Tracer):
        return True
    try:
        sign = np.sign(np.asarray(value)).min()
    except TypeError:
        raise TypeError(f"`{name}` must be a number, but is {value!r}") from None
    if sign < {"be positive": 1, "not be negative": 0}.get(must, -1):
        raise errors.of_step(f"`{name}` must {must}, but is {value}{hint}")
    return bool(sign > 0)
