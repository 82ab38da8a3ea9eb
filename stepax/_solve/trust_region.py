"""Levenberg-Marquardt: a linear model of the residuals, minimized in a trust region.

    s = argmin |J s + r|²  with |D s| <= radius,   x = x + s if the value falls

where D holds the largest norms so far of the columns of J.  The region grows if the
value falls by at least three quarters of what the model predicts, and shrinks, to where
a parabola has its minimum, if by less than a quarter.

Moré, 1978, The Levenberg-Marquardt algorithm: implementation and theory (DOI
10.1007/BFb0067700), as in MINPACK.  Ours has bounds and robust losses, never computes
a step from the normal equations, and stops where rounding hides the decrease.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._minimize.result import Code
from .._minimize.stop import OFF
from . import models
from .loop import Place, Step, Stepper


# The largest number of parameters, and of elements of J, for `solver="auto"` to form J.
_MOST, _MOST_ELEMENTS = 1_000, 10**7
# The radius of the first region, relative to |D x|.
_FIRST = 100.0
# The least ratio of actual and predicted decrease for a step to be taken.
_TAKEN = 1e-4
# The cosine of the residuals and a column above which a step should lower the value.
_SLANTED = 0.1
# How often the region may grow where it does not.
_GROWTHS = 40
# The square root of the rounding error of float64.
_ROOT = 2.0**-26


class Region(NamedTuple):
    """The state of the method.

    model: the linear model, with the scale D of the parameters.
    damping: a guess for the next step.
    first: the norm at the start.
    grown: how often the region has grown because the function was too flat to judge it.
    """

    model: Any
    radius: jax.Array
    damping: jax.Array
    first: jax.Array
    grown: jax.Array


class TrustRegion(Stepper):
    NUMBERS = 5

    def __init__(self, problem, loss: str, jacobian: str, solver: str, to_zero=False):
        """loss, jacobian, solver: as in `least_squares`.

        to_zero: whether residuals have to vanish.
        """
        super().__init__(problem)
        self._loss, self._to_zero = loss, to_zero
        rows, columns = problem.rows, problem.columns
        is_small = columns <= _MOST and rows * columns <= _MOST_ELEMENTS
        # Whether columns of J are computed, or its rows.
        forward = {"auto": columns <= rows, "forward": True, "reverse": False}
        self._forward = forward[jacobian]
        self._is_dense = {"auto": is_small, "qr": True, "cg": False}[solver]
        eps, tol = problem.eps, problem.tol
        self._is_absolute = tol.gradient is not None
        near = 4 * eps if self._is_absolute else max(4 * eps, 2.0**-33)
        default = lambda x, y: y if x is None else x
        self._gradient = default(tol.gradient, max(8 * eps, _ROOT))
        self._value, self._step = default(tol.value, near), default(tol.step, near)

    def begin(self, x: jax.Array) -> Region:
        zero = jnp.zeros([], x.dtype)
        model = models.no_model(x)
        if not self._is_dense:
            model = models.Products(model.norms, model.grad, model.scale)
        # No step leaves a region of radius 0: the first one evaluates the start.
        return Region(model, zero, zero, zero, jnp.zeros([], jnp.int32))

    def step(self, at: Place, state: Region, steps: jax.Array) -> Step:
        box, is_start = self._problem.box, steps < 0
        told = state.model.propose(self._linear, at, state.radius, state.damping, box)
        x = at.x + told.s
        if box is not None:
            x = jnp.clip(x, *box)
        r, push = jax.linearize(self._problem.fun, x)
        value = models.value_of(self._loss, self._problem.number, r)
        actual = at.value - value
        # Where rounding hides the decrease, the model is right; who asks for a small
        # gradient gets it at the cost of the last digits of the value, a long sum.
        noise = self._problem.eps * at.value
        rise = 64 * noise if self._is_absolute else 0
        is_hidden = (actual >= -rise) & (told.fall <= 4 * noise)
        is_lower = (actual >= _TAKEN * told.fall) | is_hidden
        is_taken = is_start | is_lower & (told.fall > 0) & jnp.isfinite(value)
        # XLA needs no function to convert a flag that only the branches read.
        x, r, model, is_taken = jax.lax.cond(
            is_taken,
            lambda: (x, r, self._model(r, push, state.model.scale), True),
            lambda: (at.x, at.r, state.model, False),
        )
        value_there = jnp.where(is_taken, value, at.value)
        new = self._place(x, r, value_there, model)
        is_still = ~is_start & self._is_small(at, told, actual)
        if self._is_absolute:
            is_still &= ~(new.norm < 0.5 * at.norm)
        # The model lowers the value outside of the region, as on a plateau.
        is_plateau = is_still & (told.damping > 0)
        if not self._to_zero:
            is_plateau &= at.numbers[2] > _SLANTED * jnp.sqrt(2 * at.value)
        is_lost = is_plateau & (state.grown >= _GROWTHS)
        grows = is_plateau & ~is_lost & (steps > 0) & jnp.isfinite(value)
        wider = 4 * jnp.maximum(state.radius, told.length)
        radius, damping = self._resized(at, state, told, value, steps)
        size = new.numbers[3]
        size = jnp.where(size > 0, size, 1)
        # Roots near the start are wanted, rather than the first that is met.
        first = 1.0 if self._to_zero else _FIRST
        radius = jnp.where(is_start, first * size, radius)
        region = Region(
            model,
            jnp.where(grows, wider, radius),
            damping,
            jnp.where(is_start, new.norm, state.first),
            state.grown + is_plateau.astype(jnp.int32),
        )
        is_still = is_still & ~is_plateau
        code = self._ended(new, region, value, is_taken, is_still, is_lost)
        return new, region, 1 if self._is_dense else 2, code

    def more(self, state: Region) -> Any:
        """R of J = Q R."""
        return state.model.rows[:-1].T if self._is_dense else None

    def _linear(self, x: jax.Array) -> tuple[Any, jax.Array]:
        """The derivative along a vector and the residuals, both weighted."""
        r, push = jax.linearize(self._problem.fun, x)
        w, r = self._weighted(r)
        return push if w is None else lambda v: w * push(v), r

    def _weighted(self, r: jax.Array) -> Any:
        return models.weighted(self._loss, self._problem.number, r)

    def _model(self, r, push, scale) -> Any:
        """The model at a place; `scale` is the largest so far."""
        w, r = self._weighted(r)
        if self._is_dense:
            return models.dense(push, scale, w, r, self._forward)
        return models.products(push, scale, w, r)

    def _place(self, x, r, value, model) -> Place:
        """A place, with further numbers of its model, each the largest of a vector.

        They are the length of the projection of the residuals on a column of J, |D x|,
        and the rounding error of the residuals that those of the parameters cause.
        """
        grad, norms, box = model.grad, model.norms, self._problem.box
        # What is 0 has no direction.
        lengths = grad / jnp.where(norms > 0, norms, jnp.inf)
        if box is not None:
            lengths = jnp.where(models.is_free(x, grad, box), lengths, 0)
            grad = jnp.clip(-grad, box[0] - x, box[1] - x)
        wide, slope = len(x) ** 0.5, r if self._to_zero else grad
        far, error = wide * model.scale * x, self._problem.eps * wide * norms * x
        sides = [jnp.broadcast_to(value, x.shape), slope, lengths, far, error]
        return Place(x, r, jnp.max(jnp.abs(jnp.stack(sides)), axis=1))

    def _is_small(self, at: Place, told: Any, actual: jax.Array) -> jax.Array:
        """Whether a step changes the value too little, as was predicted."""
        eps = float(jnp.finfo(at.x.dtype).eps)
        # Where rounding hides the decrease, no tolerance helps.
        tol = eps if self._value is OFF else jnp.maximum(self._value, eps)
        most = tol * at.value
        is_small = (jnp.abs(actual) <= most) & (told.fall <= most)
        return is_small & (actual <= 2 * told.fall) | ~(told.fall > 0)

    def _resized(self, at, state, told, value, steps) -> tuple[jax.Array, jax.Array]:
        """The next radius and a damping to try there."""
        actual = at.value - value
        shorter = jnp.minimum(state.radius, told.length)
        radius = jnp.where(steps == 0, shorter, state.radius)
        # Where the parabola through both values with the slope has its minimum.
        most = 0.5 if self._to_zero else 0.1
        least = 0.5 * told.slope / (told.slope + jnp.minimum(actual, 0))
        factor = jnp.where(actual >= 0, 0.5, jnp.maximum(least, most))
        is_far = value > 100 * at.value
        factor = jnp.where(is_far | ~jnp.isfinite(factor), most, factor)
        is_poor = ~((actual > 0.25 * told.fall) & (told.fall > 0))
        grows = (actual >= 0.75 * told.fall) | (told.damping == 0)
        small = factor * jnp.minimum(radius, 10 * told.length)
        large = jnp.where(grows, 2 * told.length, radius)
        damping = jnp.where(grows, 0.5 * told.damping, told.damping)
        damping = jnp.where(is_poor, told.damping / factor, damping)
        return jnp.where(is_poor, small, large), damping

    def _ended(self, new, region, value, is_taken, is_still, is_lost) -> jax.Array:
        """The code, where steps are too small, or lead nowhere."""
        size = new.numbers[3]
        is_nothing = ~is_taken & (region.radius <= self._problem.eps * size)
        is_lost = is_lost | is_nothing
        # Whether the residuals are the rounding error of the parameters.
        typical = jnp.sqrt(2 * new.value / self._problem.rows)
        is_exact = typical <= 16 * new.numbers[4]
        failure = jnp.where(is_exact, Code.VALUE, Code.SEARCH)
        failure = jnp.where(jnp.isfinite(value), failure, Code.NOT_FINITE)
        code = jnp.where(is_lost, failure, Code.RUNNING)
        if self._step is not OFF:
            is_short = is_taken & (region.radius <= self._step * size)
            code = jnp.where(is_short, Code.STEP, code)
        code = jnp.where(is_still, Code.VALUE, code)
        # The gradient is small, by default as a cosine of r and columns of J.
        flat, limit = new.norm, self._gradient
        if not self._is_absolute:
            flat, limit = new.numbers[2], limit * jnp.sqrt(2 * new.value)
        if self._to_zero:
            # The residuals are, by default relative to those at the start.
            flat, limit = new.norm, self._problem.limit(region.first)
            # No tolerance is met.
            is_end = (code != Code.RUNNING) & (code != Code.NOT_FINITE)
            end = jnp.where(is_exact, Code.PRECISE, Code.SEARCH)
            code = jnp.where(is_end, end, code)
        code = jnp.where(flat <= limit, Code.GRADIENT, code)
        is_finite = jnp.isfinite(new.norm) & jnp.isfinite(new.value)
        return jnp.where(is_finite, code, Code.NOT_FINITE)
