"""When to stop: three tolerances, and the rules that read them.

    max |g| <= gradient min(1, max |g| so far)           converged by gradient
    |f' - f| <= value max(|f'|, |f|),  5 times in a row  converged by value
    f* - f' <= value max(|f'|, |f|)   10 times, after searches; f* is the lowest so far
    max |x' - x| <= step max |x'|,     5 times in a row  converged by step

A tolerance that is given for the gradient is taken as it is, without the minimum; by
default it is also that of the value in a window of steps, see `watch.py`, and a run of
BFGS ends by value where there is nothing left to gain as far as it knows:

    max(g·H g, |g|² max s·s/s·y) <= rest min(f(start) - f, max(1, |f|)),
    max |g| <= gentle max |g| so far

where they are 9.3e-10 and 1.9e-6 in float64, 7.5e-9 and 9.8e-4 in float32.  A quadratic
function falls by half of g·H g from there to its minimum.  The second bound has the
flattest curvature of any pair, which H may have forgotten or not seen yet; and six
pairs are wanted.  It is asked before a search, which is then not made, whereas a fall
of the value that was small has cost an evaluation already.

The last two compare one step with the next, and in a flat valley, or with a small
learning rate, a step may be short far from a minimum.  So a rule that is 0 is off, as
`step` is by default; `value` is on only for methods that search along a line, at the
rounding of the value; and one short step is not enough.  In float32 a plateau of
Wood's function holds searches up for more than five steps.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from .._linesearch.line import largest as largest


PATIENCE, PATIENCE_OF_SEARCHES = 5, 10
# How little of the scale of the value, and of the steepest slope, ends a run: see
# `Rules`; both are known to less in float32.  With ten times `_REST` no minimum of the
# benchmark's tuning half would be missed.
_REST, _GENTLE = 2.0**-30, 2.0**-19
# A rule that is off: no array, so that a program knows it when it is compiled.
OFF: Any = ()
# Of the rounding error of float64.
_ROOT = 2.0**-26


class Tolerances(NamedTuple):
    """When `minimize` stops; each is >= 0, and `None` the default.

    gradient: the largest entry of the gradient, in size; by default 9.5e-7 in float32
        and 1.5e-8 in float64, of the largest gradient so far if that is below 1, or if
        the value falls by no more in 20 steps, or "lbfgs" sees next to nothing left
        to gain.  For methods that do not search along
        lines 3.5e-4 and 1.5e-8, and by the gradient alone.
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


class Rules(NamedTuple):
    """The tolerances as arrays, or `OFF`.

    fall: by how much the value has to fall in a window, see `watch.py`.
    rest: by how much BFGS has to promise that it will fall.
    gentle: how small the gradient has to be for that, beside the largest one.
    is_absolute: whether the gradient is compared as it is.
    """

    gradient: Any
    value: Any
    step: Any
    fall: Any
    rest: Any
    gentle: Any
    is_absolute: bool


def resolve_tolerances(tol: Tolerances, xs: list, dtype: Any, searches: bool) -> Rules:
    """The rules for a method that searches along lines, or does not."""
    eps = max(float(jnp.finfo(x.dtype).eps) for x in xs)
    # Searches go on until rounding stops them, in float64 until what is left of the
    # parameters is about the square root of it.
    precise = max(8 * eps, _ROOT) if searches else eps**0.5
    value = float(jnp.finfo(dtype).eps) if searches else OFF
    pairs = zip(tol, (precise, value, OFF), strict=True)
    found = [default if x is None else x for x, default in pairs]
    is_absolute = tol.gradient is not None
    watches = searches and not is_absolute and found[1] is not OFF
    rest = max(float(jnp.finfo(dtype).eps) / 16, _REST), max(2**13 * eps, _GENTLE)
    found += [precise, *rest] if watches else [OFF] * 3
    rules = [OFF if isinstance(x, tuple) else jnp.asarray(x, dtype) for x in found]
    return Rules(*rules, is_absolute=is_absolute)
