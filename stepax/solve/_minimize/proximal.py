"""Accelerated proximal gradient: the minimum of f + g, of which only f is smooth.

    z = P(y - s df(y)),   P the proximal operator of s g
    s = s / 2   until f(z) <= f(y) + df(y)·(z - y) + |z - y|² / 2s
    y = z + (m - 1) / m' (z - x),   m' = (1 + sqrt(1 + 4 s / s' m²)) / 2;   x = z

Beck and Teboulle, 2009, A Fast Iterative Shrinkage-Thresholding Algorithm for Linear
Inverse Problems (DOI 10.1137/080716542).  The momentum restarts, m = 1, when a step
turns against the last one: (y - z)·(z - x) > 0 (O'Donoghue and Candès, 2015, DOI
10.1007/s10208-013-9150-3).  The step may grow again (Scheinberg, Goldfarb and Bai,
2014, DOI 10.1007/s10208-014-9189-9), where the curvature along it leaves room.

A run stops by the largest element of (y - z) / s + df(z) - df(y), a subgradient of
f + g at z.  It takes two evaluations for each step.  Near the minimum rounding hides
the differences of values, so that those of gradients decide on the step there.

The minimum x = P(x - s df(x)), for any s > 0, has derivatives by the implicit function
theorem, also with respect to the weights of g (Bertrand et al., 2022, Implicit
differentiation for fast hyperparameter selection in non-smooth convex learning, JMLR
23).  It need not be the only minimum, so that systems are solved by least squares.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..._engine.arrays.numerics import safe_sqrt
from ..._engine.arrays.precision import compute_dtype
from ..._linesearch.line import choose, dot, largest, search_dtype
from ...tree import conj
from . import implicit
from .bundle import while_loop
from .loop import Inputs, Loop, Place, Run, Setup, counted
from .pairs import each
from .result import Result
from .watch import watch


_TRIALS = 100
# The square root of the rounding error of float64.
_ROOT = 2.0**-26
_SHRINK, _GROW = 0.5, 1.25
# The part of the curvature that the step allows below which it may grow.
_ROOM = 0.5


class Momentum(NamedTuple):
    """The state: y, where the next gradient is taken; the step s; `size` m."""

    point: list
    step: jax.Array
    size: jax.Array


class _Trial(NamedTuple):
    xs: list
    value: jax.Array
    grads: list
    step: jax.Array
    room: jax.Array
    count: jax.Array
    fits: jax.Array


class Nonsmooth:
    """The operator of a problem, for lists of the moving arrays."""

    def __init__(self, setup: Setup, weights: Any):
        self._frame, self._g = setup.frame, setup.prox.whole((), weights)

    def value(self, xs: list, dtype: Any) -> jax.Array:
        return jnp.asarray(self._g.value(self._frame.params(xs))).astype(dtype)

    def point(self, xs: list, step: jax.Array) -> list:
        found = self._frame.pick(self._g(self._frame.params(xs), step))
        return [z.astype(x.dtype) for x, z in zip(xs, found, strict=True)]

    def step(self, xs: list, grads: list, s: jax.Array) -> list:
        """P(x - s g)."""
        return self.point(moved(xs, -s, grads), s)


class Proximal(Loop):
    """The loop with steps of this method."""

    EACH = 2

    def __init__(self, setup: Setup, both: Callable, inputs: Inputs):
        super().__init__(setup, both, inputs)
        self._g = Nonsmooth(setup, inputs.weights)
        precise = jnp.asarray(max(self._eps**0.75, _ROOT), self._dtype)
        if inputs.tol.gradient is None:
            self._tol = self._tol._replace(gradient=precise)
        if inputs.tol.step is None:
            # Steps that change nothing cannot lower the gradient any further.
            still = jnp.asarray(self._eps, self._dtype)
            self._tol = self._tol._replace(step=still)

    def _open_method(self) -> tuple[None, bool]:
        return None, False

    def begin(self) -> Run:
        xs, dtype = self._inputs.moving, self._dtype
        start = self._g.point(xs, jnp.ones([], dtype))
        # A start outside of a set is moved to it.
        xs = choose(jnp.isfinite(self._g.value(xs, dtype)), xs, start)
        value, grads = self._slopes(xs)
        step = self._first_step(xs, grads)
        z = self._g.step(xs, grads, step)
        at = self._point(xs, value, [u / step.astype(u.dtype) for u in _less(xs, z)])
        state = Momentum(xs, step, jnp.ones([], dtype))
        run = self._begun(at, watch(at), None, state)
        return run._replace(evaluations=run.evaluations + 1)

    def _first_step(self, xs: list, grads: list) -> jax.Array:
        """1 / the curvature along the gradient, from a short step."""
        size, steep = largest(xs, self._dtype), largest(grads, self._dtype)
        is_steep = steep > 0
        length = self._eps**0.5 * jnp.maximum(size, 1) / jnp.where(is_steep, steep, 1)
        near = moved(xs, -length, grads)
        change = _less(self._slopes(near)[1], grads)
        move = _less(near, xs)
        curvature = safe_sqrt(self._dot(change, change) / self._dot(move, move))
        is_known = jnp.isfinite(curvature) & (curvature > 0)
        far = jnp.maximum(size, 1) / jnp.where(is_steep, steep, 1)
        return jnp.where(is_known, 1 / jnp.where(is_known, curvature, 1), far)

    def _step(self, run: Run) -> Run:
        old, state = run.at, run.state
        value, grads = self._slopes(state.point)
        found = self._search(state, value, grads)
        xs, step = found.xs, found.step
        back = _less(state.point, xs)
        change = _less(found.grads, grads)
        residual = each(lambda u, v: u / step.astype(u.dtype) + v, back, change)
        new = self._point(xs, found.value, residual)
        forth = _less(xs, old.xs)
        restarts = self._dot(back, forth) > 0
        following = jnp.where((found.count == 1) & found.room, _GROW, 1) * step
        size = (1 + jnp.sqrt(1 + 4 * step / following * state.size**2)) / 2
        beta = jnp.where(restarts, 0, (state.size - 1) / size)
        point = moved(xs, beta, forth)
        state = Momentum(point, following, jnp.where(restarts, 1, size))
        # A search that fails ends the run: there is no memory to clear.
        run = counted(run, state, found.count + 1)._replace(tried=run.tried * 0 + 1)
        return self._judge(run, new, ~found.fits)

    def _search(self, state: Momentum, value: jax.Array, grads: list) -> _Trial:
        """The first of ever shorter steps in which the value is below the parabola."""
        eps, steep = 8 * self._eps, safe_sqrt(self._dot(grads, grads))

        def trial(last):
            step = jnp.where(last.count == 0, last.step, _SHRINK * last.step)
            xs = self._g.step(state.point, grads, step)
            new, slopes = self._slopes(xs)
            d = _less(xs, state.point)
            square = self._dot(d, d)
            allowed = square / (2 * step)
            curvature = self._dot(_less(slopes, grads), d)
            is_below = new <= value + self._dot(grads, d) + allowed
            size = jnp.maximum(jnp.abs(new), jnp.abs(value))
            is_visible = allowed > 4 * eps * size
            is_flat = curvature <= allowed + eps * steep * safe_sqrt(square)
            fits = (is_visible & is_below | is_flat) & jnp.isfinite(new)
            room = curvature <= 2 * _ROOM * allowed
            return _Trial(xs, new, slopes, step, room, last.count + 1, fits)

        no, zero = jnp.zeros([], bool), jnp.zeros([], jnp.int32)
        first = _Trial(state.point, value, grads, state.step, no, zero, no)
        return while_loop(lambda t: ~t.fits & (t.count < _TRIALS), trial, first)

    def _slopes(self, xs: list) -> tuple[jax.Array, list]:
        """The value of the smooth part, and the direction in which it rises."""
        value, grads = self._value_and_grads(xs)
        return value, conj(grads)

    def _point(self, xs: list, value: jax.Array, residual: list) -> Place:
        norm, size = (largest(x, self._dtype) for x in (residual, xs))
        value = value + self._g.value(xs, self._dtype)
        return Place(xs, value, residual, norm, size)

    def _dot(self, xs: list, ys: list) -> jax.Array:
        return dot(xs, ys).astype(self._dtype)


def moved(xs: list, t: jax.Array, ds: list) -> list:
    """x + t d, in the dtypes of x."""

    def one(x, d):
        wide = compute_dtype(x)
        far = t.astype(wide) * d.astype(wide)
        return (x.astype(wide) + far).astype(x.dtype)

    return each(one, xs, ds)


def _less(xs: list, ys: list) -> list:
    """x - y, in float32 or wider."""
    xs, ys = ([x.astype(compute_dtype(x)) for x in side] for side in (xs, ys))
    return each(jnp.subtract, xs, ys)


# --- derivatives ---------------------------------------------------------------------


def attach_nonsmooth(setup, both, inputs, found) -> Result:
    """The result with derivatives, where they exist; both: as for `implicit.attach`."""
    data = inputs.data, inputs.weights
    if not implicit.is_traced(data):
        return found
    slopes = jax.grad(lambda xs, arrays: both(xs, arrays)[0])
    rising = lambda xs, arrays: conj(slopes(xs, arrays))

    def motion(xs, data, data_dot):
        step = _step_at(lambda xs: rising(xs, data[0]), xs)

        def less(xs, data):  # x - P(x - s df)
            g = Nonsmooth(setup, data[1])
            return each(jnp.subtract, xs, g.step(xs, rising(xs, data[0]), step))

        return implicit.root_motion(less, implicit.solve_general, xs, data, data_dot)

    def value(xs, data):
        smooth = both(xs, data[0])[0].astype(found.value.dtype)
        return smooth + Nonsmooth(setup, data[1]).value(xs, smooth.dtype)

    xs = implicit.solution_at(motion, found.params, data)
    number = implicit.output_at(value, found.value, xs, data)
    return found._replace(params=xs, value=number)


def _step_at(slopes: Callable, xs: list) -> jax.Array:
    """1 / the curvature along a vector of signs, a step of the right size."""
    signs = [jax.random.rademacher(jax.random.key(0), x.shape, x.dtype) for x in xs]
    _, bent = jax.jvp(slopes, (xs,), (signs,))
    curvature = jax.lax.stop_gradient(largest(bent, search_dtype(xs)))
    is_known = jnp.isfinite(curvature) & (curvature > 0)
    return jnp.where(is_known, 1 / jnp.where(is_known, curvature, 1), 1)
