"""Phases of a schedule, and their lengths: steps, or fractions of a total."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from .._engine.arrays.numerics import has_dtype
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
    return widen(x, compute_dtype(x)) if has_dtype(x) else x


def nonzero(x):
    """`x`, or 1 where it is 0, as a safe divisor."""
    if isinstance(x, Tracer):
        return jnp.where(x == 0, jnp.ones_like(x), x)
    return x if np.all(np.asarray(x) != 0) else 1


def is_zero(x):
    """Whether a value is known to be 0."""
    return not isinstance(x, Tracer) and bool(np.all(np.asarray(x) == 0))


def after(power, start, end):
    """The value once nothing remains: 0 to a power, which is 1 for the power 0."""
    return jnp.where(power == 0, start, end) if isinstance(power, Tracer) else end


def positive(name, value, must="", hint=""):
    """Whether a value is above 0; traced values are assumed to be."""
    if isinstance(value, Tracer):
        return True
    try:
        known = np.asarray(value)
        if known.dtype == bool and not known.any():
            known = known.astype(int)  # none, as in `uses_warmup and 100`
        sign = np.min(np.sign(known))
    except TypeError:
        raise TypeError(f"`{name}` must be a number, but is {value!r}") from None
    if sign < {"be positive": 1, "not be negative": 0}.get(must, -1):
        raise errors.of_step(f"`{name}` must {must}, but is {value}{hint}")
    return bool(sign > 0)


# Larger ones do not fit the dtype of a count, but are compared with it as floats.
_LARGEST = 2**31 - 1


def ends(total_steps: Any, **lengths: ArrayLike | None) -> list[Any]:
    """The steps at which successive phases end, by name.

    A phase ends at the step nearest to its exact end, with halves rounded up, so that
    fractions whose sum is 1 end at the total.

    total_steps: the steps of which floats between 0 and 1 are fractions.
    lengths: the length of each phase; at most one is `None`, which takes the rest of
        the total.
    """
    _check_total(total_steps)
    parts = {name: _exact(name, x, total_steps) for name, x in lengths.items()}
    known = [x for x in parts.values() if x is not None]
    exact, found = 0, []
    for x in parts.values():
        exact = exact + (total_steps - sum(known) if x is None else x)
        found.append(_nearest(exact))
    is_known = not any(isinstance(x, Tracer) for x in (total_steps, *known))
    if total_steps is not None and is_known and _nearest(sum(known)) > total_steps:
        said = ", ".join(f"`{name}` {x}" for name, x in lengths.items())
        raise ValueError(
            f"{said} take {_nearest(sum(known))} steps, but `total_steps` is "
            f"{total_steps}"
        )
    return found


def length(name: str, given: ArrayLike, total_steps: ArrayLike | None) -> Any:
    """The steps of a single phase."""
    return ends(total_steps, **{name: given})[0]


def _check_total(total_steps):
    if total_steps is None or isinstance(total_steps, Tracer):
        return
    positive("total_steps", total_steps, "be positive")
    if not float(total_steps).is_integer():
        raise ValueError(
            f"`total_steps` must be a whole number of steps, but is {total_steps}"
        )


def _exact(name, x, total_steps):
    """The steps of a length, before they are rounded; `None` for the rest."""
    if x is None and total_steps is not None:
        return None
    if isinstance(x, Tracer):
        return _traced(wide(x), total_steps)
    positive(name, x, "not be negative")
    number = np.asarray(x).item()
    if isinstance(number, int):
        return number
    if 0 < number < 1:
        if total_steps is None:
            raise ValueError(
                f"`{name}` is {number}, a fraction of `total_steps`, which is not given"
            )
        return number * total_steps
    # An array of 1.0 may have been the integer 1, as from `inject_hyperparams`.
    is_unclear = number == 1 and not isinstance(x, jax.Array)
    if is_unclear or not float(number).is_integer():
        raise ValueError(
            f"`{name}` is {number}, expected a whole number of steps (1 is one step), "
            "or a fraction of `total_steps` between 0 and 1 (the whole is "
            "`total_steps` itself)"
        )
    return int(number)


def _traced(x, total_steps):
    """As `_exact`, for a traced length, whose value alone decides what it means."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    # A fraction without a total gives NaN, as it cannot raise.
    total = jnp.nan if total_steps is None else 1.0 * total_steps
    return jnp.where((x > 0) & (x < 1), x * total, x)


def _nearest(exact):
    if isinstance(exact, Tracer):
        return jnp.floor(exact + 0.5)
    step = exact if isinstance(exact, int) else math.floor(exact + 0.5)
    return step if step <= _LARGEST else float(step)
