"""Stopping rules, and the three tolerances that set them.

    max |g| <= gradient min(1, max |g| so far)           converged by gradient
    |f' - f| <= value max(|f'|, |f|),  5 times in a row  converged by value
    f* - f' <= value max(|f'|, |f|)   10 times, after searches; f* is the lowest so far
    max |x' - x| <= step max |x'|,     5 times in a row  converged by step

A gradient tolerance given by the user is absolute, without the minimum; the default
also applies to the value in a window of steps, see `watch.py`, and a run of BFGS ends
by value where it predicts no further decrease:

    max(g·H g, |g|² max s·s/s·y) <= max(rest min(f(start) - f, 1), 4 eps |f|),
    max |g| <= gentle min(max |g| so far, 100)

where `rest` and `gentle` are 9.3e-10 and 1.9e-6 in float64, 7.5e-9 and 9.8e-4 in
float32.  A quadratic function falls by g·H g / 2 from there to its minimum.  The second
bound uses the flattest curvature of any pair, which H may have dropped or not seen yet;
six pairs are required.  This rule is checked before a search, which is then skipped,
whereas a small decrease of the value has already cost an evaluation.

The last two rules compare successive steps; but in a flat valley, or with a small
learning rate, steps may be short far from a minimum.  Hence a tolerance of 0 turns a
rule off, which is the default for `step`; `value` is only on for methods with a line
search, at the rounding error of the value; and one short step is not enough.  In
float32 a plateau of Wood's function delays searches by more than five steps.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike


PATIENCE, PATIENCE_OF_SEARCHES = 5, 10
# `rest` and `gentle` of `Rules`, relative to the scale of the value and to the steepest
# slope; both are larger in float32.  Even with ten times `_REST` every minimum of the
# tuning half of the benchmark is found.
_REST, _GENTLE = 2.0**-30, 2.0**-19
# A rule that is off: not an array, so that it is known at compile time.
OFF: Any = ()
# The square root of the rounding error of float64.
_ROOT = 2.0**-26


class Tolerances(NamedTuple):
    """When `minimize` stops; each tolerance is >= 0, or `None` for the default.

    gradient: the largest |g| element; by default 9.5e-7 in float32 and 1.5e-8 in
        float64, relative to the largest gradient so far if that is below 1; the run
        also ends if the value falls by no more in 20 steps, or if "lbfgs" predicts
        almost no further decrease.  For methods without a line search 3.5e-4 and
        1.5e-8, by the gradient only.
    value: the relative change of the value; 0 is off.  By default its rounding error,
        1.2e-7 and 2.2e-16, for methods with a line search, otherwise 0.
    step: the largest change of a parameter, relative to the largest parameter; 0, the
        default, is off.
    violation: the largest distance of a constraint from its limits, relative to limits
        above 1; by default 3.5e-4 in float32 and 1.5e-8 in float64.
    """

    gradient: ArrayLike | None = None
    value: ArrayLike | None = None
    step: ArrayLike | None = None
    violation: ArrayLike | None = None


def check_tolerances(tol: Any) -> Tolerances:
    """`tol` as `Tolerances`; a scalar is the gradient tolerance."""
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
                "`Tolerances(gradient, value, step, violation)`"
            )
    known = {k: x for k, x in found._asdict().items() if k in ("value", "step")}
    for k, x in known.items():
        if not (x is None or isinstance(x, Tracer)) and float(x) == 0:
            found = found._replace(**{k: OFF})
    return found


class Rules(NamedTuple):
    """The tolerances as arrays, or `OFF`.

    fall: the least decrease of the value in a window, see `watch.py`.
    rest: the least decrease that BFGS must predict.
    gentle: how small the gradient must be for that, relative to the largest one.
    is_absolute: whether the gradient tolerance is absolute.
    """

    gradient: Any
    value: Any
    step: Any
    fall: Any
    rest: Any
    gentle: Any
    is_absolute: bool


def resolve_tolerances(tol: Tolerances, xs: list, dtype: Any, searches: bool) -> Rules:
    """The rules for a method with or without a line search."""
    eps = max(float(jnp.finfo(x.dtype).eps) for x in xs)
    # Searches continue to the limit set by rounding, in float64 until the error of the
    # parameters is about its square root.
    precise = max(8 * eps, _ROOT) if searches else eps**0.5
    value = float(jnp.finfo(dtype).eps) if searches else OFF
    pairs = zip(tol[:3], (precise, value, OFF), strict=True)
    found = [default if x is None else x for x, default in pairs]
    is_absolute = tol.gradient is not None
    watches = searches and not is_absolute and found[1] is not OFF
    rest = max(float(jnp.finfo(dtype).eps) / 16, _REST), max(2**13 * eps, _GENTLE)
    gentle = rest[1] if searches and found[1] is not OFF else OFF
    found += [precise, rest[0], gentle] if watches else [OFF, OFF, gentle]
    rules = [OFF if isinstance(x, tuple) else jnp.asarray(x, dtype) for x in found]
    return Rules(*rules, is_absolute=is_absolute)
