"""Stopping rules, the three tolerances that set them, and observations of a run.

    max |g| <= gradient min(1, max |g| so far)           converged by gradient
    |f' - f| <= value max(|f'|, |f|),  5 times in a row  converged by value
    f* - f' <= value max(|f'|, |f|)   10 times, after searches; f* is the lowest so far
    max |x' - x| <= step max |x'|,     5 times in a row  converged by step

A gradient tolerance given by the user is absolute, without the minimum; the default
also applies to the value in a window of steps, see below, and a run of BFGS ends
by value where it predicts no further decrease:

    max(g·H g, |g|² max s·s/s·y) <= max(rest min(f(start) - f, 1), 4 eps |f|),
    max |g| <= gentle min(max |g| so far, 100)

where `rest` and `gentle` are 9.3e-10 and 1.9e-6 in float64, 7.5e-9 and 9.8e-4 in
float32.  A quadratic function falls by g·H g / 2 from there to its minimum.  The second
bound uses the flattest curvature of any pair, which H may have dropped or not seen yet;
six pairs are required.  This rule is checked before a search, of which then only one
trial is made, along the gradient: if that is lower, or by its slope g' could be,

    f - f(x - t g) > d   or   (g·g)² t > max(d / 16, 4 eps |f|) (g·g - g·g'),

where d is the right-hand side, the memory is cleared instead, and the run goes on.

The last two rules compare successive steps; but in a flat valley, or with a small
learning rate, steps may be short far from a minimum.  Hence a tolerance of 0 turns a
rule off, which is the default for `step`; `value` is only on for methods with a line
search, at the rounding error of the value; and one short step is not enough.  In
float32 a plateau of Wood's function delays searches by more than five steps.

Observations determine the scale of two more rules.  The value no longer falls
noticeably:

    f(20 steps ago) - f <= max(tol min(f(start) - f, 1), 4 eps |f|)

and there is no minimum: the value is -inf, or has fallen by 1e12 times what the start
and the gradients suggest, or the parameters have grown by a half 30 times in a row, as
towards the infimum of -log x, while the value fell by more than a thousandth of that
scale each time.  If a search fails, there is no minimum either if the value has become
very low, or lower and much steeper than at the start, as near the pole of log x.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from ..._engine.arrays.numerics import power_of_two


# Steps between two checks of the value, and steps after which BFGS can predict the
# remaining decrease.
WINDOW, ENOUGH = 20, 6
# A decrease of the value, relative to what the start suggests, that shows that there is
# no minimum.
FAR, _GROWTH, _GROWTHS, _NOTICED = 1e12, 1.5, 30, 1e-3
_STEEPENS, _DEEPER = 1e4, 10
# The largest relative rise above the lowest value that a search may lead to: ten times
# the rise that `scale_by_zoom_linesearch` attributes to rounding.
_RISE = 1e-5
_FLAT = 1e-2
# Rounding error of a value that is a long sum, in units of one rounding; a slope that
# counts as steep, however steep it was far away.
HIDDEN, _STEEP = 4, 100
# The slope above which nothing is predicted, which matters in float32.
_LEVEL = 2.0**-10


class Watch(NamedTuple):
    """Observations so far; all fields are scalars.

    first, slope: the value and the largest |g| element at the start.
    likely: the decrease at that slope over a distance of the size of the parameters.
    steepest: the largest |g| element of any gradient.
    mark: the value at the start of the window; since: steps since then.
    growths: consecutive steps in which the parameters have grown.
    """

    first: jax.Array
    slope: jax.Array
    likely: jax.Array
    steepest: jax.Array
    mark: jax.Array
    since: jax.Array
    growths: jax.Array

    def after(self, old: Any, new: Any) -> "Watch":
        """Include a step from one place to another, which may be rejected."""
        is_full = self.since == WINDOW
        scale = jnp.minimum(self.first - new.value, jnp.maximum(1, jnp.abs(new.value)))
        falls = old.value - new.value > _NOTICED * scale
        grows = falls & (new.size >= _GROWTH * old.size)
        norm = jnp.where(new.norm < jnp.inf, new.norm, 0)
        return self._replace(
            steepest=jnp.maximum(self.steepest, norm),
            mark=jnp.where(is_full, old.value, self.mark),
            since=jnp.where(is_full, 1, self.since + 1),
            growths=in_a_row(grows, self.growths),
        )

    def little(self, value: jax.Array, tol: jax.Array) -> jax.Array:
        """A decrease of the value that is small, or that rounding hides.

        It is not relative to a large value, of which an offset may be the most.
        """
        hidden = jnp.minimum(tol, HIDDEN * jnp.finfo(value.dtype).eps)
        known = tol * jnp.minimum(self.first - value, 1)
        return jnp.maximum(known, hidden * jnp.abs(value))

    def is_gentle(self, at: Any, gentle: jax.Array) -> jax.Array:
        """Whether the slope is small against the steepest one, if that is not large."""
        return at.norm <= gentle * jnp.minimum(self.steepest, _STEEP)

    def is_slow(self, at: Any, tol: jax.Array) -> jax.Array:
        """Whether the value has not fallen noticeably in a window.

        If the slope is steep, this is a narrow bend of a valley rather than its end.
        """
        is_still = self.mark - at.value <= self.little(at.value, tol)
        flat = _FLAT * jnp.minimum(self.steepest, 1)
        return (self.since == WINDOW) & is_still & (at.norm <= flat)

    def has_no_minimum(self, value: jax.Array) -> jax.Array:
        # Use the steepest slope, because the start may be near a flat saddle.
        likely = self.likely * (self.steepest / self.slope)
        is_far = self.first - value > FAR * likely
        return (value == -jnp.inf) | is_far | (self.growths >= _GROWTHS)

    def falls_off(self, at: Any) -> jax.Array:
        """Whether a search fails because the value overflows or is near a pole."""
        far = jnp.finfo(at.value.dtype).max ** 0.5
        is_low = at.value < -far * jnp.maximum(1, jnp.abs(self.first))
        is_steep = at.norm > _STEEPENS * self.slope
        return is_low | is_steep & (self.first - at.value > _DEEPER * self.likely)


def watch(at: Any) -> Watch:
    zero = jnp.zeros([], jnp.int32)
    likely = jnp.maximum(jnp.abs(at.value), at.norm * jnp.maximum(1, at.size))
    return Watch(at.value, at.norm, likely, at.norm, at.value, zero, zero)


def in_a_row(is_so: jax.Array, count: jax.Array) -> jax.Array:
    return jnp.where(is_so, count + 1, 0)


def little_to_gain(run: Any, rules: Any) -> jax.Array:
    """The predicted decrease below which a run ends, divided by `unit`.

    The run does not end where the slope is steep, or while there are few pairs.
    """
    little = run.seen.little(run.at.value, rules.rest) / run.unit
    is_sure = (run.tried >= ENOUGH) & run.seen.is_gentle(run.at, rules.gentle)
    is_sure &= run.at.norm <= _LEVEL
    return jnp.where(is_sure, little, -1)


def fails(run: Any, new: Any, misses: jax.Array) -> jax.Array:
    """Whether a search has found no value that is lower or as low.

    misses: whether the search reports a failure.  Near a minimum rounding hides the
    decrease, and a search relies on the slope.  However, many small rises add up, as
    they do if the gradient is wrong.
    """
    old = run.at
    is_same = (new.value == old.value) & (new.norm == old.norm)
    misses = ~(new.value < old.value) & (misses | is_same)
    return misses | (new.value > run.lowest + _RISE * jnp.abs(run.lowest))


def unit_of(value: jax.Array, norm: jax.Array) -> jax.Array:
    """A power of two by which to divide the value and its gradients for the method.

    It is 1 if squares of the gradients neither overflow nor underflow, even as the
    gradients become smaller; otherwise it moves them to the middle of the range.
    """
    limits = jnp.finfo(value.dtype)
    most = jnp.asarray(2.0 ** (limits.maxexp * 3 // 8), value.dtype)
    least = jnp.asarray(2.0 ** (-limits.maxexp * 3 // 16), value.dtype)
    is_steep, is_flat = norm > most, (norm < least) & (norm > 0)
    unit = jnp.where(is_steep, norm * least, jnp.where(is_flat, norm, 1))
    # The scaled value must be finite as well.
    high = jnp.abs(value) * least**4
    return power_of_two(jnp.where(is_steep | is_flat, jnp.maximum(unit, high), 1))


def search_in(state: Any) -> Any:
    """The state of the line search at the end of a transformation, or `None`.

    Only a search that comes last holds the value and gradient of the next point.
    """
    kind = type(state)
    if kind is tuple and len(state):
        return search_in(state[-1])
    if hasattr(state, "linesearch"):
        return search_in(state.linesearch)
    has_all = all(hasattr(state, name) for name in ("value", "grad", "info"))
    return state if has_all and state.grad is not None else None


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
            is_number = not isinstance(x, str) and np.ndim(x) == 0
            is_fine = is_number and float(np.asarray(x)) >= 0
        except (TypeError, ValueError):
            is_fine = False
        if not is_fine:
            raise ValueError(
                f"the tolerance `{name}` in `tol` is {x!r}, expected a number >= 0 or "
                "`Tolerances(gradient, value, step, violation)`"
            )
    is_off = lambda x: not (x is None or isinstance(x, Tracer)) and float(x) == 0
    pair = {"value": found.value, "step": found.step}
    return found._replace(**{k: OFF for k, x in pair.items() if is_off(x)})


class Rules(NamedTuple):
    """The tolerances as arrays, or `OFF`.

    fall: the least decrease of the value in a window.
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
