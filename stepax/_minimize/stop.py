"""When to stop: three tolerances, and the rules that read them.

    max |g| <= gradient                                  converged by gradient
    |f' - f| <= value max(|f'|, |f|),  5 times in a row  converged by value
    f* - f' <= value max(|f'|, |f|)   10 times, after searches; f* is the lowest so far
    max |x' - x| <= step max |x'|,     5 times in a row  converged by step

The last two compare one step with the next, and in a flat valley, or with a small
learning rate, a step may be short far from a minimum.  So a rule that is 0 is off, as
`step` is by default; `value` is on only for methods that search along a line, at the
rounding of the value; and one short step is not enough.  In float32 a plateau of
Wood's function holds searches up for more than five steps.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from .._engine.numerics import joined
from .._engine.precision import compute_dtype, real_dtype


PATIENCE, PATIENCE_OF_SEARCHES = 5, 10
# A rule that is off: no array, so that a program knows it when it is compiled.
OFF: Any = ()


class Tolerances(NamedTuple):
    """When `minimize` stops; each is >= 0, and `None` the default.

    gradient: the largest entry of the gradient, in size; by default the square root of
        the rounding error of the parameters, 3.5e-4 in float32, 1.5e-8 in float64.
    value: the change of the value, relative to it; 0 is off.  By default its rounding
        error, 1.2e-7 and 2.2e-16, for methods that search along a line, else 0.
    step: the largest change of a parameter, relative to the largest parameter; 0, the
        default, is off.
    """

    gradient: ArrayLike | None = None
    value: ArrayLike | None = None
    step: ArrayLike | None = None


def check_tolerances(tol: Any) -> Tolerances:
    """`tol` as `Tolerances`; a number is that of the gradient."""
    found = tol if isinstance(tol, Tolerances) else Tolerances(tol)
    for name, x in zip(found._fields, found, strict=True):
        if x is None or isinstance(x, Tracer):
            continue
        try:
            is_fine = np.ndim(x) == 0 and float(np.asarray(x)) >= 0
        except (TypeError, ValueError):
            is_fine = False
        if not is_fine:
            raise ValueError(
                f"the tolerance `{name}` in `tol` is {x!r}, expected a number >= 0 or "
                "`Tolerances(gradient, value, step)`"
            )
    is_zero = lambda x: not (x is None or isinstance(x, Tracer)) and float(x) == 0
    return found._replace(
        **{k: OFF for k in ("value", "step") if is_zero(getattr(found, k))}
    )


def resolve_tolerances(tol: Tolerances, xs: list, dtype: Any, searches: bool) -> Any:
    """The three as arrays, or `OFF`."""
    eps = max(float(jnp.finfo(x.dtype).eps) for x in xs)
    value = float(jnp.finfo(dtype).eps) if searches else OFF
    defaults = eps**0.5, value, OFF
    pairs = zip(tol, defaults, strict=True)
    found = [default if x is None else x for x, default in pairs]
    return Tolerances(
        *(OFF if isinstance(x, tuple) else jnp.asarray(x, dtype) for x in found)
    )


def largest(xs: list, dtype: Any) -> jax.Array:
    """max |x| over all entries of a list of arrays; NaN if there is one."""
    sizes = [_largest(x) for x in xs if x.size]
    wide = [x.astype(dtype) for x in sizes] or [jnp.zeros([], dtype)]
    return joined(wide, jnp.maximum, jnp.max)


@jax.jit
def _largest(x):
    return jnp.max(jnp.abs(x)).astype(real_dtype(compute_dtype(x)))
