"""BFGS with its line search, for a few vectors in a compiled loop.

The Hessian approximation is a `Matrix` for few parameters, otherwise the last `Pairs`.
The first step goes to the minimizer of a parabola with minimum value 0, and has a
length of at most 1.

A matrix takes less memory than the pairs, includes all of them, and its product is one
operation.  Nocedal and Wright, 2006, Numerical Optimization, 2nd edition, equation
6.17; Al-Baali, 1998, Numerical experience with a class of self-scaling quasi-Newton
algorithms (DOI 10.1023/A:1022608410710), for the scaling, without which directions with
less curvature than the first pair are learned slowly:

    H = max(1, s·y / y·H y) H;   for the first pair, s·y / y·y times the identity
    H = V' H V + s s' / s·y,   V = I - y s' / s·y
"""

import functools as ft
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ..._engine.arrays.numerics import power_of_two, safe_sqrt
from ..._linesearch.line import Point, choose, decrease_error, dot
from ..._linesearch.zoom import Ends, Settings, narrow, nothing_known
from .bundle import while_loop
from .pack import is_placed
from .pairs import curvature, each, flatter, next_guess, no_pairs, times
from .watch import HIDDEN


# The largest number of parameters for which to use a matrix.
MOST = 64
_TRIALS = 20
_SETTINGS = Settings()


class Found(NamedTuple):
    """The outcome of a step.

    count: number of trials of the search.
    is_hidden: whether rounding of the value hides the predicted decrease.
    is_near: whether too small a decrease is predicted to take a step.
    is_flat: whether a trial along the gradient then shows that there is more to gain.
    """

    xs: list
    value: jax.Array
    grads: list
    count: jax.Array
    is_hidden: jax.Array
    is_near: jax.Array
    is_flat: jax.Array


def begin(value: jax.Array, grads: list, size: ArrayLike = 0.0) -> Any:
    """An approximation without pairs, with only a scale of the inverse Hessian."""
    scale = scale_without_pairs(value, grads, size)
    is_vector = len(grads) == 1 and grads[0].ndim == 1
    # The outer product of a divided vector with itself would be divided twice.
    if is_vector and grads[0].size <= MOST and not is_placed(grads[0]):
        return no_matrix(grads[0].size, scale)
    return no_pairs(grads, scale)


def scale_without_pairs(value: jax.Array, grads: list, size: ArrayLike) -> jax.Array:
    """The scale that knows only the value, its slope and the size of the parameters.

    size: the largest parameter; the first step must not be negligible against it.
    """
    square = dot(grads, grads).astype(value.dtype)
    square = jnp.where(square > 0, square, 1)
    height = jnp.where(value == 0, jnp.inf, 2 * jnp.abs(value))
    visible = 64 * jnp.finfo(value.dtype).eps * size
    return jnp.minimum(jnp.maximum(1, visible) * safe_sqrt(square), height) / square


def step(
    known, xs, value, grads, both, scale, is_new, little=None
) -> tuple[Found, Any]:
    """One search, and the approximation updated with its pair of differences.

    both: maps a list of arrays to the value and its gradients.
    scale: of a step along the gradient; see `scale_without_pairs`.
    is_new: whether the memory was just cleared, so that `scale` is all that is known.
    little: the least decrease for which a search is worth its evaluations.
    """
    d = known.direction(grads)
    slope = _inner(d, grads, value)
    start = Point(jnp.zeros_like(value), value, slope, grads)
    # A long first step promises much: what rounding hides is told by the pairs so far.
    told = start._replace(slope=jnp.where(is_new & (known.flattest > 0), 0, slope))
    is_hidden = _is_near(known, told, HIDDEN * _rounding(start))
    is_near = jnp.zeros([], bool)
    if little is not None:
        # Before the prediction is believed, one trial as of a run that starts here.
        is_near = _is_near(known, start, little)
        plain = lambda u, g: -scale.astype(u.dtype) * g.astype(u.dtype)
        d = choose(is_near, each(plain, d, grads), d)
        slope = jnp.where(is_near, -scale * _inner(grads, grads, value), slope)
        start = start._replace(slope=slope)

    def move(t):
        add = lambda x, u: x + (t.astype(u.dtype) * u).astype(x.dtype)
        return each(add, xs, d)

    def at(t):
        value, grads = both(move(t))
        return Point(t, value, _inner(d, grads, value), grads)

    guess = jnp.where(is_near, 1, known.guess)
    low, tried, count = _search(at, start, guess, jnp.where(is_near, 1, _TRIALS))
    low = choose(is_near, start, low)
    is_flat = is_near if little is None else is_near & _gains(start, tried, little)
    rest = low.value, low.grads, count, is_hidden, is_near, is_flat
    found = Found(move(low.step), *rest)
    s, y = each(jnp.subtract, found.xs, xs), each(jnp.subtract, found.grads, grads)
    return found, known.remember(s, y, found.grads, low.step)


def _gains(start: Point, trial: Point, little: Any) -> jax.Array:
    """Whether a trial is lower by more than `little`, or predicts such a decrease.

    A parabola with both slopes falls by half of slope² / rise.  A sixteenth of `little`
    counts, as the gradient has steeper components, too.  A slope of 0 underflowed.
    """
    rise = trial.slope - start.slope
    least = jnp.maximum(little / 16, HIDDEN * _rounding(start))
    is_far = (rise > 0) & (start.slope**2 > least * rise)
    is_lower = start.value - trial.value > little
    return is_far | is_lower | (start.slope == 0)


def _is_near(known: Any, at: Point, little: Any) -> jax.Array:
    """Whether the minimum is predicted to be only slightly lower.

    A quadratic function falls by g·H g / 2.  Directions that H has not seen may be
    flatter, but rarely flatter than the flattest pair.
    """
    flat = known.flattest * _inner(at.grads, at.grads, at.value)
    return jnp.maximum(-at.slope, flat) <= little


class _Search(NamedTuple):
    """The state of a search; `grads` are those at the lower end."""

    count: jax.Array
    step: jax.Array
    ends: Ends
    is_done: jax.Array
    grads: list
    last: Point


def _search(at, start, guess, most) -> tuple[Point, Point, jax.Array]:
    """The point that a search finds, or its start; the last trial; their number.

    most: the largest number of trials.
    """

    def advance(s):
        t = at(s.step)
        rise = _rise(t.value.dtype)
        error = decrease_error(t, start, _SETTINGS.slope_rtol, approx_rtol=rise)
        is_flat = jnp.abs(t.slope) <= -_SETTINGS.curv_rtol * start.slope
        bare = t.bare()
        ends, is_low = narrow(s.ends, bare, error <= 0)
        is_enough = s.ends.is_short(_SETTINGS) & (ends.low.step > 0)
        # Nothing is below -inf; the loop reports it.
        is_lowest = t.value == -jnp.inf
        ends = ends._replace(low=choose(is_lowest, bare, ends.low))
        grads = each(ft.partial(jnp.where, is_low), t.grads, s.grads)
        promised = -start.slope * t.step
        is_hopeless = (ends.low.step == 0) & (promised <= _rounding(start))
        is_done = is_low & is_flat | is_enough | is_lowest | is_hopeless
        return _Search(s.count + 1, _next(ends), ends, is_done, grads, bare)

    bare = start.bare()
    ends = nothing_known(bare)
    is_over = ~(start.slope < 0)  # True for NaN, too
    first = _Search(jnp.zeros([], jnp.int32), guess, ends, is_over, start.grads, bare)
    end = while_loop(lambda s: ~s.is_done & (s.count < most), advance, first)
    return end.ends.low._replace(grads=end.grads), end.last, end.count


# The next step keeps this fraction of the interval away from its ends; the least and
# largest increase of a step, as in Moré and Thuente, 1994, ACM TOMS 20, 286-307.
_EDGE, _LEAST, _MOST = 0.1, 2.0, 5.0


def _next(ends: Ends) -> jax.Array:
    """The minimum of the cubic through the ends, or through the last two points.

    It is kept away from the ends.  Comparisons with NaN fail.
    """
    a, is_bracketed = ends.low, ends.is_bracketed
    b = choose(is_bracketed, ends.high, ends.replaced)
    left, right = jnp.minimum(a.step, b.step), jnp.maximum(a.step, b.step)
    edge = _EDGE * (right - left)
    least = jnp.where(is_bracketed, left + edge, _LEAST * a.step)
    most = jnp.where(is_bracketed, right - edge, _MOST * a.step)
    cubic = _cubic(a, b)
    # If the cubic has no minimum ahead, it is NaN or lies behind.
    is_ahead = (cubic > left) & (cubic < right) | ~is_bracketed & (cubic > a.step)
    default = jnp.where(is_bracketed, (left + right) / 2, most)
    return jnp.clip(jnp.where(is_ahead, cubic, default), least, most)


def _cubic(a: Point, b: Point) -> jax.Array:
    """The minimum of the cubic through two points with their slopes: 3.59 in Nocedal
    and Wright, 2006, Numerical Optimization, 2nd edition."""
    h, rise = b.step - a.step, b.value - a.value
    # Squares of slopes may overflow or underflow where the slopes do not.
    steepest = jnp.maximum(jnp.abs(a.slope), jnp.abs(b.slope))
    unit = power_of_two(jnp.maximum(steepest, jnp.abs(rise)))
    left, right, rise = a.slope / unit, b.slope / unit, rise / unit
    d1 = left + right - 3 * rise / h
    d2 = jnp.sign(h) * jnp.sqrt(d1 * d1 - left * right)
    return b.step - h * (right + d2 - d1) / (right - left + 2 * d2)


def _rise(dtype: Any) -> float:
    """The relative rise that may be rounding; a rise of 1e10 by 1e4 is not."""
    return min(_SETTINGS.approx_dec_rtol, 2.0**16 * float(jnp.finfo(dtype).eps))


def _rounding(at: Point) -> jax.Array:
    return jnp.finfo(at.value.dtype).eps * jnp.abs(at.value)


def _inner(xs, ys, like):
    return dot(xs, ys).astype(like.dtype)


class Matrix(NamedTuple):
    """The inverse Hessian for one vector.

    h: the matrix, of shape (n, n).
    scale: s·y / y·y of the newest pair.
    is_first: whether there has been no pair yet.
    guess: the first step size to try in the next search.
    flattest: the largest s·s / s·y of all pairs so far.
    """

    h: jax.Array
    scale: jax.Array
    is_first: jax.Array
    guess: jax.Array
    flattest: jax.Array

    def forget(self, is_empty: jax.Array, scale: jax.Array) -> "Matrix":
        """Replace the matrix with `scale` times the identity, if `is_empty`."""
        plain = scale * jnp.eye(len(self.h), dtype=self.h.dtype)
        h = jnp.where(is_empty, plain, self.h)
        return self._replace(h=h, is_first=self.is_first | is_empty)

    def direction(self, grads: list) -> list:
        return [-times(self.h, grads[0].astype(self.h.dtype))]

    def remember(self, s: list, y: list, grads: list, step: ArrayLike = 1) -> "Matrix":
        """Update with a pair if it has curvature; s is `step` times the direction."""
        sy, yy, ss, fits = curvature(s, y, self.scale.dtype)
        t, change = s[0].astype(sy.dtype), y[0].astype(sy.dtype)
        hy = times(self.h, change)
        yhy = times(change, hy)
        ratio = sy / jnp.where(fits & (yhy > 0), yhy, sy)
        factor = jnp.where(self.is_first, ratio, jnp.maximum(ratio, 1))
        flattest = flatter(self.flattest, ss, sy, fits)
        sy = jnp.where(fits, sy, 1)
        t, hy = t / sy, factor * hy
        cross = jnp.outer(hy, t)
        rank_two = (sy + factor * yhy) * jnp.outer(t, t) - cross - jnp.outer(t, hy)
        return Matrix(
            jnp.where(fits, factor * self.h + rank_two, self.h),
            jnp.where(fits, sy / yy, self.scale),
            self.is_first & ~fits,
            next_guess(fits, step, self.guess),
            flattest,
        )


def no_matrix(size: int, scale: jax.Array) -> Matrix:
    plain = scale * jnp.eye(size, dtype=scale.dtype)
    one, zero = jnp.ones_like(scale), jnp.zeros_like(scale)
    return Matrix(plain, scale, jnp.ones([], bool), one, zero)
