"""Shared code of schedules: argument checks and phases."""

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer


def phase(count, begin, steps):
    """The steps done and the steps in total; a traced phase of 0 steps is not begun."""
    t = jnp.maximum(count - jnp.maximum(begin, 0), 0)
    if not isinstance(steps, Tracer):
        return t, steps
    return jnp.where(steps > 0, t, 0), jnp.where(steps > 0, steps, 1)


def nonzero(x):
    """`x`, or 1 where it is 0, as a safe divisor."""
    if isinstance(x, Tracer):
        return jnp.where(x == 0, jnp.ones_like(x), x)
    return x if np.all(np.asarray(x) != 0) else 1


def positive(name, value, must=""):
    """Whether a value is above 0; traced values are assumed to be."""
    if isinstance(value, Tracer):
        return True
    try:
        sign = np.sign(np.asarray(value)).min()
    except TypeError:
        raise TypeError(f"`{name}` must be a number, but is {value!r}") from None
    if sign < {"be positive": 1, "not be negative": 0}.get(must, -1):
        raise ValueError(f"`{name}` must {must}, but is {value}")
    return bool(sign > 0)


def scales_at(boundaries_and_scales):
    scales = {} if boundaries_and_scales is None else boundaries_and_scales
    if not isinstance(scales, Mapping):
        raise TypeError("`boundaries_and_scales` must be a dict of {step: scale}")
    for boundary, scale in scales.items():
        positive("boundaries_and_scales", boundary)
        positive(f"boundaries_and_scales[{boundary}]", scale, "not be negative")
    return dict(scales)


def corners(steps, fractions, div_factor, final_div_factor):
    """Check the arguments; return the steps at which the phases of a cycle end."""
    positive("transition_steps", steps, "be positive")
    positive("div_factor", div_factor, "be positive")
    positive("final_div_factor", final_div_factor, "be positive")
    ends = [fraction * steps for fraction in (*fractions, 1)]
    if any(isinstance(x, Tracer) for x in (0, *fractions, *ends)):
        return [jnp.floor(end) for end in ends]
    if [0, *fractions, 1] != sorted([0, *fractions, 1]):
        raise ValueError(f"`pct_...` must be in order from 0 to 1, but are {fractions}")
    return [int(end) for end in ends]
