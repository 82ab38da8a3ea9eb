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

from ..._engine.arrays.numerics import every_finite
from .._minimize.result import Code
from .._minimize.watch import OFF
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
# Of the tolerance of the value, how much a step that is left out may lower it; and how
# far it may move a parameter, relative to that.
_LITTLE, _SHORT = 2.0**-5, 3e-7
# The change of a parameter, relative to its size, above which it still moves.
_MOVED = 1e-3
# How often the region may grow where it does not.
_GROWTHS = 40
# The square root of the rounding error of float64.
_ROOT = 2.0**-26


class Region(NamedTuple):
    """The state of the method.

    model: the linear model, with the scale D of the parameters.
    damping: a guess for the next step.
    lowest: the smallest gradient so far where rounding hides decreases; for a root the
        norm at the start.
    grown: how often the region has grown because the function was too flat to judge it.
    """

    model: Any
    radius: jax.Array
    damping: jax.Array
    lowest: jax.Array
    grown: jax.Array


class TrustRegion(Stepper):
    def __init__(self, problem, loss: str, jacobian: str, solver: str, to_zero=False):
        """As in `least_squares`; to_zero: whether residuals have to vanish."""
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
        # The tolerances of the value and of the step.
        near = max(4 * eps, 0 if self._is_absolute else 2.0**-33)
        # Whether rounding hides the decrease before these are met.
        self._is_precise = self._is_absolute or near == 4 * eps and not to_zero
        least = near if self._is_absolute else max(eps, 2.0**-33)
        default = lambda x, y: y if x is None else x
        self._gradient = default(tol.gradient, max(8 * eps, _ROOT))
        self._value, self._step = default(tol.value, least), default(tol.step, near)
        # Whether the model may tell that a further step is not worth its evaluation.
        watches = not self._is_precise and not to_zero and self._value is not OFF
        self._predicts = self._is_dense and watches
        self.numbers = 7 if self._predicts else 5

    def begin(self, x: jax.Array) -> Region:
        zero, far = jnp.zeros([], x.dtype), jnp.full([], jnp.inf, x.dtype)
        model = models.no_model(x)
        if not self._is_dense:
            model = models.Products(model.norms, model.grad, model.scale)
        # No step leaves a region of radius 0: the first one evaluates the start.
        return Region(model, zero, zero, far, jnp.zeros([], jnp.int32))

    def step(self, at: Place, state: Region, steps: jax.Array) -> Step:
        box, is_start = self._problem.box, steps < 0
        told = state.model.propose(self._linear, at, state.radius, state.damping, box)
        x = at.x + told.s
        if box is not None:
            x = jnp.clip(x, *box)
        r, push = jax.linearize(self._problem.fun, x)
        value = models.value_of(self._loss, self._problem.number, r)
        is_lower = at.value - value >= _TAKEN * told.fall
        is_lower = (is_lower | self._hides(at, told, value)) & (told.fall > 0)
        old = at.x, at.r, state.model
        # XLA needs no function to convert flags that only the branches read.
        x, r, model, is_taken, is_broken = jax.lax.cond(
            is_start | is_lower & jnp.isfinite(value),
            lambda: self._measured(x, r, push, old),
            lambda: (*old, False, False),
        )
        value = jnp.where(is_broken, jnp.inf, value)
        there = jnp.where(is_taken, value, at.value)
        new = self._place(x, r, there, model, told.s)
        is_still = ~is_start & self._is_small(at, told, value)
        lowest, is_hidden = state.lowest, False
        if self._is_precise:
            size = new.numbers[1 if self._is_absolute else 2]
            gains, lowest = size < 0.5 * lowest, jnp.minimum(lowest, size)
            is_hidden = gains & self._hides(at, told, value)
            is_still &= ~gains
        elif self._predicts:
            is_still |= is_taken & self._is_last(new, told)
        elif self._to_zero:
            lowest = jnp.where(is_start, new.norm, lowest)
        # The model lowers the value outside of the region, as on a plateau.
        is_plateau = is_still & (told.damping > 0)
        if not self._to_zero:
            is_plateau &= _is_slanted(at)
        is_lost = is_plateau & (state.grown >= _GROWTHS)
        grows = is_plateau & ~is_lost & (steps > 0) & jnp.isfinite(value)
        wider = 4 * jnp.maximum(state.radius, told.length)
        radius, damping = self._resized(at, state, told, value, steps, is_hidden)
        radius = jnp.where(is_start, self._first_radius(new), radius)
        grown = state.grown + is_plateau.astype(jnp.int32)
        radius = jnp.where(grows, wider, radius)
        region = Region(model, radius, damping, lowest, grown)
        is_still = is_still & ~is_plateau
        # A rise that rounding may have caused is no progress.
        is_taken = is_taken & ~(value > at.value)
        moves = is_taken, self._is_short(told.s, x), told.damping > 0
        code = self._ended(new, region, value, moves, is_still, is_lost)
        return new, region, 1 if self._is_dense else 2, code

    def factor(self, state: Region) -> Any:
        """R of J = Q R."""
        is_known = self._is_dense and not self._to_zero
        return state.model.rows[:-1].T if is_known else None

    def _linear(self, x: jax.Array) -> tuple[Any, jax.Array]:
        """The derivative along a vector and the residuals, both weighted."""
        r, push = jax.linearize(self._problem.fun, x)
        w, r = self._weighted(r)
        return push if w is None else lambda v: w * push(v), r

    def _weighted(self, r: jax.Array) -> Any:
        return models.weighted(self._loss, self._problem.number, r)

    def _measured(self, x, r, push, old) -> tuple:
        """A place with its model, whether they are taken, and whether J is not finite.

        The start is taken as it is.
        """
        scale = old[2].scale
        model = self._model(r, push, scale)
        new = x, r, model
        is_fine = every_finite(model.grad) | (scale[0] < 0)
        end = lambda: (*old, False, True)
        return jax.lax.cond(is_fine, lambda: (*new, True, False), end)

    def _model(self, r, push, scale) -> Any:
        """The model at a place; `scale` is the largest so far."""
        w, r = self._weighted(r)
        if self._is_dense:
            return models.dense(push, scale, w, r, self._forward)
        return models.products(push, scale, w, r)

    def _place(self, x, r, value, model, s) -> Place:
        """A place, with further numbers of its model, each the largest of a vector.

        They are the length of the projection of the residuals on a column of J, |D x|,
        and the rounding error of the residuals that those of the parameters cause; then
        q of the model, and the step s to the place relative to the parameters.
        """
        grad, norms, box = model.grad, model.norms, self._problem.box
        # What is 0 has no direction.
        lengths = grad / jnp.where(norms > 0, norms, jnp.inf)
        if box is not None:
            lengths = jnp.where(models.is_free(x, grad, box), lengths, 0)
            grad = jnp.clip(-grad, box[0] - x, box[1] - x)
        wide, slope = len(x) ** 0.5, r if self._to_zero else grad
        far, error = wide * model.scale * x, self._problem.eps * len(x) * norms * x
        sides = [jnp.broadcast_to(value, x.shape), slope, lengths, far, error]
        if self._predicts:
            sides += [model.rows[-1], s / jnp.where(x == 0, jnp.inf, x)]
        return Place(x, r, jnp.max(jnp.abs(jnp.stack(sides)), axis=1))

    def _noise(self, at: Place) -> tuple[jax.Array, Any]:
        """The rounding error of the value, and how far it may seem to rise by that.

        Who asks for a small gradient, or has few digits, gets it at the cost of the
        last digits of the value, a long sum.
        """
        noise = self._problem.eps * at.value
        return noise, 64 * noise if self._is_precise else 0

    def _hides(self, at: Place, told: Any, value: jax.Array) -> jax.Array:
        """Whether rounding hides the decrease, where the model is right."""
        noise, rise = self._noise(at)
        return (at.value - value >= -rise) & (told.fall <= 4 * noise)

    def _is_small(self, at: Place, told: Any, value: jax.Array) -> jax.Array:
        """Whether a step changes the value too little, as was predicted."""
        eps, actual = float(jnp.finfo(at.x.dtype).eps), at.value - value
        # Where rounding hides the decrease, no tolerance helps.
        tol = eps if self._value is OFF else jnp.maximum(self._value, eps)
        most = tol * at.value
        # The value of residuals that cancel has the error of their terms.
        rise = jnp.maximum(self._noise(at)[1], at.numbers[4] * jnp.sqrt(2 * at.value))
        rise = jnp.maximum(most, rise)
        is_small = (actual <= most) & (actual >= -rise) & (told.fall <= most)
        return is_small & (actual <= 2 * told.fall) | ~(told.fall > 0)

    def _is_short(self, s: jax.Array, x: jax.Array) -> jax.Array:
        """Whether a step is short in each parameter.

        A region that is small against one large parameter may be large for others.
        """
        most = _MOVED if self._step is OFF else jnp.maximum(_MOVED, self._step)
        return jnp.all(jnp.abs(s) <= most * jnp.abs(x))

    def _is_last(self, new: Place, told: Any) -> jax.Array:
        """Whether a further step would change value and parameters too little.

        The model lowers the value by at most |q|² / 2, and steps become shorter as the
        roots of these decreases do.
        """
        fall = 0.5 * self._problem.columns * new.numbers[5] ** 2
        is_short = new.numbers[6] ** 2 * fall <= _SHORT**2 * told.fall
        return is_short & (fall <= _LITTLE * self._value * new.value)

    def _first_radius(self, at: Place) -> jax.Array:
        # Roots near the start are wanted, rather than the first that is met.
        size = jnp.where(at.numbers[3] > 0, at.numbers[3], 1)
        return size if self._to_zero else _FIRST * size

    def _resized(self, at, state, told, value, steps, is_hidden) -> Any:
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
        is_fine = (actual > 0.25 * told.fall) & (told.fall > 0)
        is_poor = ~(is_fine | is_hidden)
        grows = (actual >= 0.75 * told.fall) | (told.damping == 0)
        small = factor * jnp.minimum(radius, 10 * told.length)
        large = jnp.where(grows, 2 * told.length, radius)
        damping = jnp.where(grows, 0.5 * told.damping, told.damping)
        damping = jnp.where(is_poor, told.damping / factor, damping)
        return jnp.where(is_poor, small, large), damping

    def _ended(self, new, region, value, moves, is_still, is_lost) -> jax.Array:
        """The code, where steps are too small, or lead nowhere.

        moves: whether the step was taken, is short in each parameter, and bounded by
            the region.
        """
        size, (is_taken, is_short, is_bound) = new.numbers[3], moves
        is_nothing = ~is_taken & (region.radius <= self._problem.eps * size)
        is_lost = is_lost | is_nothing
        # Whether the residuals are the rounding error of the parameters.
        typical = jnp.sqrt(2 * new.value / self._problem.rows)
        is_exact = typical <= 16 * new.numbers[4]
        failure = jnp.where(is_exact, Code.VALUE, Code.SEARCH)
        failure = jnp.where(jnp.isfinite(value), failure, Code.NOT_FINITE)
        code = jnp.where(is_lost, failure, Code.RUNNING)
        if self._step is not OFF:
            is_short &= is_taken & (region.radius <= self._step * size)
            end = jnp.where(is_bound & _is_slanted(new), Code.STUCK, Code.STEP)
            code = jnp.where(is_short, end, code)
        code = jnp.where(is_still, Code.VALUE, code)
        # The gradient is small, by default as a cosine of r and columns of J.
        flat, limit = new.norm, self._gradient
        if not self._is_absolute:
            flat, limit = new.numbers[2], limit * jnp.sqrt(2 * new.value)
        if self._to_zero:
            # The residuals are, by default relative to those at the start.
            flat, limit = new.norm, self._problem.limit(region.lowest)
            # No tolerance is met.
            is_end = (code != Code.RUNNING) & (code != Code.NOT_FINITE)
            end = jnp.where(is_exact, Code.STEP, Code.STUCK)
            code = jnp.where(is_end, end, code)
        is_small = Code.RESIDUAL if self._to_zero else Code.GRADIENT
        code = jnp.where(flat <= limit, is_small, code)
        is_finite = jnp.isfinite(new.norm) & jnp.isfinite(new.value)
        return jnp.where(is_finite, code, Code.NOT_FINITE)


def _is_slanted(at: Place) -> jax.Array:
    """Whether the residuals are so parallel to a column of J that steps should help."""
    return at.numbers[2] > _SLANTED * jnp.sqrt(2 * at.value)
