"""A line search for the strong Wolfe conditions.

Nocedal and Wright, 2006, Numerical Optimization, 2nd edition, Algorithms 3.5 (bracket)
and 3.6 (zoom); Hager and Zhang, 2006 (DOI 10.1145/1132973.1132979) for the decrease
near a minimum.  The choice that the algorithms leave open is Optax's: a step grows by a
fixed factor, and is then the minimum of a cubic, or else of a parabola, with the slope
at the lower end, or the middle of the interval where that would come near an end.

Differences from Optax:

1. `info` describes the step that is taken, not the last one that was tried.
2. After a step of 0 the next search does not start at 0.
"""

import functools as ft
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._engine import rules as rx
from .._engine.arrays.numerics import power_of_two, safe_increment
from .line import Line, Point, choose, decrease_error, first_state, hold, repeat


@rx.optax_compatible
class ZoomLinesearchInfo(rx.optax.ZoomLinesearchInfo):
    """Diagnostics of a search; all fields are scalars.

    num_linesearch_steps: number of evaluations of the function.
    decrease_error: amount by which the value misses the sufficient decrease; 0 if it
        does not, infinite if no finite value was found.
    curvature_error: amount by which the slope misses flatness.
    """

    num_linesearch_steps: jax.Array
    decrease_error: jax.Array
    curvature_error: jax.Array


@rx.optax_compatible
class ScaleByZoomLinesearchState(rx.optax.ScaleByZoomLinesearchState):
    """State of `scale_by_zoom_linesearch`.

    learning_rate: the last step size, a scalar.
    value: value of the function after that step, a scalar.
    grad: gradient there, shaped like the parameters.
    info: diagnostics of the search.
    """

    learning_rate: jax.Array
    value: jax.Array
    grad: Any
    info: ZoomLinesearchInfo


class Settings(NamedTuple):
    """Arguments of `scale_by_zoom_linesearch`."""

    max_learning_rate: Any = jnp.inf
    tol: Any = 0.0
    increase_factor: Any = 2.0
    slope_rtol: Any = 1e-4
    curv_rtol: Any = 0.9
    approx_dec_rtol: Any = 1e-6
    stepsize_precision: Any = 1e-5


class Ends(NamedTuple):
    """The interval that contains the step; the `grads` of its ends are empty.

    low: the point with the lowest value so far, which descends towards `high`; before
        an interval is found, the last point.
    high: the other end, if there is one.
    replaced: the point that was one of these before the last trial.
    """

    low: Point
    high: Point
    replaced: Point
    is_bracketed: jax.Array

    def is_short(self, settings: Settings) -> jax.Array:
        """Whether the interval is so short that a decrease is enough."""
        width = jnp.abs(self.high.step - self.low.step)
        return self.is_bracketed & (width <= settings.stepsize_precision)


class _Search(NamedTuple):
    """A search; best: the point to take now, with its errors; initially the start."""

    count: jax.Array
    step: jax.Array
    ends: Ends
    is_done: jax.Array
    best: Point
    decrease_error: jax.Array
    curvature_error: jax.Array


_RANGES = {
    "max_linesearch_steps": rx.AT_LEAST_1,
    "tol": rx.AT_LEAST_0,
    "increase_factor": rx.Range(1, excludes_least=True),
    "slope_rtol": rx.UP_TO_1,
    "curv_rtol": rx.CAP,
    "approx_dec_rtol": rx.AT_LEAST_0,
    "stepsize_precision": rx.AT_LEAST_0,
}


@rx.public(paper="DOI 10.1007/978-0-387-40065-5", ranges=_RANGES)
def scale_by_zoom_linesearch(
    max_linesearch_steps: rx.Whole,
    max_learning_rate: ArrayLike | None = None,
    tol: ArrayLike = 0.0,
    increase_factor: ArrayLike = 2.0,
    slope_rtol: ArrayLike = 1e-4,
    curv_rtol: ArrayLike = 0.9,
    approx_dec_rtol: ArrayLike | None = 1e-6,
    stepsize_precision: ArrayLike = 1e-5,
    initial_guess_strategy: Literal["keep", "one"] | str = "keep",
    verbose: bool = False,
) -> rx.GradientTransformationExtraArgs:
    """Multiply by a step size that meets the strong Wolfe conditions.

        f(step) <= f(0) + slope_rtol step f'(0) + tol,   f(step) = value_fn(p + step u)
        |f'(step)| <= curv_rtol |f'(0)| + tol

    `update` takes the keywords `value` and `grad` at the parameters, and `value_fn`,
    which receives the other keywords and may return a pair (value, aux).

    max_linesearch_steps: maximum number of evaluations of the function, at least 1.
    max_learning_rate: largest step size, above 0.
    tol: slack in both conditions, at least 0.
    increase_factor: factor between trial steps while bracketing, above 1.
    slope_rtol, curv_rtol: factors of the slope, in [0, 1], and at least 0.
    approx_dec_rtol: relative rise of the value up to which the slope decides.
    stepsize_precision: length of the interval at which a decrease is enough.
    initial_guess_strategy: first step to try: "keep" for the last one, "one" for 1.
    verbose: whether to print why a search fails.

    Raises a `TypeError` for missing keywords and those that `value_fn` does not accept,
    and a `ValueError` for arguments out of range.
    """
    rx.require_one_of("initial_guess_strategy", initial_guess_strategy, ("keep", "one"))
    max_learning_rate = jnp.inf if max_learning_rate is None else max_learning_rate
    settings = rx.pass_on(Settings, locals())

    def init(params):
        return first_state(ScaleByZoomLinesearchState, ZoomLinesearchInfo, params)

    def update(updates, state, params=None, **extra_args):
        name = "scale_by_zoom_linesearch"
        rx.errors.require_state(name, ScaleByZoomLinesearchState, state)
        rx.check_gradients(updates, grad=state.grad)
        line = Line(name, updates, state, params, extra_args)
        numbers = line.numbers(settings)
        guess = state.learning_rate if initial_guess_strategy == "keep" else 1.0
        guess = jnp.asarray(guess).astype(line.dtype)
        step = jnp.minimum(jnp.where(guess > 0, guess, 1), numbers.max_learning_rate)
        ends, no = nothing_known(line.start.bare()), jnp.zeros([], bool)
        count, far = jnp.zeros([], jnp.int32), jnp.full([], jnp.inf, line.dtype)
        end = repeat(
            lambda s: ~s.is_done & (s.count < max_linesearch_steps),
            lambda s: _advance(s, line.at(s.step), line.start, numbers),
            _Search(count, step, ends, no, line.start, far, far),
        )
        found = end.decrease_error, end.curvature_error
        if verbose:
            line.report(end.best, end.count, decrease=found[0], curvature=found[1])
        info = ZoomLinesearchInfo(end.count, *found)
        step, value, grad = end.best.step, end.best.value, line.gradient(end.best)
        new = ScaleByZoomLinesearchState(step, value, grad, info)
        return line.updates(step), rx.keep_dtypes(new, state)

    return rx.transformation(init, update, reads_any=True)


def nothing_known(start: Point) -> Ends:
    """The interval before the first trial."""
    nowhere = jnp.full_like(start.value, jnp.nan)
    unknown = Point(nowhere, nowhere, nowhere)
    return Ends(start, unknown, unknown, jnp.zeros([], bool))


@jax.jit
def _advance(s: _Search, t: Point, start: Point, settings: Settings) -> _Search:
    """Algorithms 3.5 and 3.6, from one trial to the next."""
    slope_rtol, rise = settings.slope_rtol, settings.approx_dec_rtol
    decrease = decrease_error(t, start, slope_rtol, approx_rtol=rise)
    # |f'(step)| <= curv_rtol |f'(0)|; `fmax`: an infinite tolerance accepts any slope,
    # but its product with 0 is NaN.
    steep = jnp.abs(t.slope) - settings.curv_rtol * jnp.abs(start.slope)
    curvature = jnp.where(t.is_finite(), jnp.fmax(steep, 0), jnp.inf)
    decreases, is_flat = decrease <= settings.tol, curvature <= settings.tol
    ends, is_low = narrow(s.ends, t.bare(), decreases)
    step = _next(ends, settings)

    # Whether to stop, and with which point.
    is_wolfe = decreases & is_flat
    is_longest = ~ends.is_bracketed & (t.step >= settings.max_learning_rate)
    was_safe = s.decrease_error <= settings.tol
    is_better = is_low | (decreases & ~s.ends.is_bracketed)
    is_taken = hold(~was_safe | is_better)
    best = choose(is_taken, choose(hold(t.is_finite()), t, start), s.best)
    misses = s.decrease_error, s.curvature_error
    misses = choose(is_taken, (decrease, curvature), misses)
    is_enough = s.ends.is_short(settings) & (was_safe | decreases)
    is_done = is_wolfe | is_longest | is_enough
    return _Search(safe_increment(s.count), step, ends, is_done, best, *misses)


def narrow(ends: Ends, t: Point, decreases: jax.Array) -> tuple[Ends, jax.Array]:
    """The interval after a trial, and whether that is its lower end."""
    low, high, _, was_bracketed = ends
    has_low = was_bracketed | (low.step > 0)
    is_low = decreases & ~(has_low & (t.value >= low.value))
    ahead = jnp.where(was_bracketed, high.step - low.step, 1)
    turns = is_low & (t.slope * ahead >= 0)
    replaced = choose(is_low & ~turns, low, high)
    high = choose(is_low, choose(turns, low, high), t)
    low = choose(is_low, t, low)
    return Ends(low, high, replaced, was_bracketed | ~is_low | turns), is_low


# The next step keeps these fractions of the interval away from its ends.
_CUBIC_EDGE, _QUADRATIC_EDGE = 0.2, 0.1


def _next(ends: Ends, settings: Settings) -> jax.Array:
    """A step within the interval, or a longer one; comparisons with NaN fail."""
    low, high = ends.low.step, ends.high.step
    left, width = jnp.minimum(low, high), jnp.abs(high - low)
    fits = lambda x, edge: (x > left + edge * width) & (x < left + (1 - edge) * width)
    cubic, quadratic = _interpolated(*ends[:3])
    step = jnp.where(fits(quadratic, _QUADRATIC_EDGE), quadratic, (low + high) / 2)
    step = jnp.where(fits(cubic, _CUBIC_EDGE), cubic, step)
    step = jnp.where(ends.is_bracketed, step, settings.increase_factor * low)
    return jnp.minimum(step, settings.max_learning_rate)


def _interpolated(a: Point, b: Point, c: Point) -> tuple[jax.Array, jax.Array]:
    """Minima of the cubic through three points, and of the parabola through two, that
    have the slope at the first.

        f(a + t h) - f(a) = p t^3 + q t^2 + d t,   h = b - a
    """
    h = b.step - a.step
    drops = a.slope * h, b.value - a.value, c.value - a.value
    # Squares of differences may overflow or underflow where these do not.
    unit = power_of_two(ft.reduce(jnp.maximum, map(jnp.abs, drops[:2])))
    d, at_b, at_c = (x / unit for x in drops)
    t = (c.step - a.step) / h
    both, other = at_b - d, (at_c - d * t) / (t * t)
    p = (other - both) / (t - 1)
    q = both - p
    cubic = (jnp.sqrt(q * q - 3 * p * d) - q) / (3 * p)
    return a.step + h * cubic, a.step - h * d / (2 * both)
