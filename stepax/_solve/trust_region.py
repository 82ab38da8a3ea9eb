"""Levenberg-Marquardt: a linear model of the residuals, minimized in a trust region.

    s = argmin |J s + r|²  with |D s| <= radius,   x = x + s if the value falls

where D holds the largest norms so far of the columns of J.  The region grows if the
value falls by at least three quarters of what the model predicts, and shrinks, to where
a parabola has its minimum, if by less than a quarter.

Moré, 1978, The Levenberg-Marquardt algorithm: implementation and theory (DOI
10.1007/BFb0067700), as in MINPACK.  Ours has bounds and robust losses, never computes
a step from the normal equations, and stops where rounding hides the decrease.
"""

import functools as ft
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._linesearch.line import choose, hold, largest
from .._minimize.stop import OFF
from .loop import RUNNING, Place, Problem, Stepper
from .losses import value_of, weighted
from .models import dense, is_free, products


# The codes of `MinimizeStatus`, and of `SolveStatus` for roots.
_GRADIENT, _VALUE, _STEP, _FAILED, _NOT_FINITE = map(np.int32, (0, 1, 2, 4, 5))
_PRECISE = np.int32(1)
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
    """The state: the model, the scale D of the parameters, and the region.

    damping: a guess for the next step; is_first: whether no step has been tried.
    first: the norm at the start.
    grown: how often the region has grown because the function was too flat to judge it.
    """

    model: Any
    scale: jax.Array
    radius: jax.Array
    damping: jax.Array
    is_first: jax.Array
    first: jax.Array
    grown: jax.Array


class TrustRegion(NamedTuple):
    """The options of the method, as in `least_squares`.

    to_zero: whether residuals have to vanish.
    """

    loss: str
    jacobian: str
    solver: str
    to_zero: bool = False

    def __call__(self, problem: Problem) -> "_Stepper":
        rows, columns = problem.rows, problem.columns
        is_small = columns <= _MOST and rows * columns <= _MOST_ELEMENTS
        forward = {"auto": columns <= rows, "forward": True, "reverse": False}
        is_dense = {"auto": is_small, "qr": True, "cg": False}
        return _Stepper(self, problem, forward[self.jacobian], is_dense[self.solver])


class _Stepper(Stepper):
    """The method for one problem."""

    def __init__(
        self, options: TrustRegion, problem: Problem, forward: bool, is_dense: bool
    ):
        """forward: whether columns of J are computed, or its rows."""
        self._options, self._problem = options, problem
        self._is_dense = is_dense
        self._model = ft.partial(dense, forward=forward) if is_dense else products
        eps, tol = problem.eps, problem.tol
        precise = max(8 * eps, _ROOT)
        self._is_absolute = tol.gradient is not None
        near = 4 * eps if self._is_absolute else max(4 * eps, 2.0**-33)
        default = lambda x, y: y if x is None else x
        self._gradient = default(tol.gradient, precise)
        self._value, self._step = default(tol.value, near), default(tol.step, near)

    def begin(self, x: jax.Array) -> tuple[Place, Region, jax.Array]:
        r, push = jax.linearize(self._problem.fun, x)
        model = self._model_at(x, r, push)
        scale = jnp.where(model.norms > 0, model.norms, 1)
        size = _norm(scale * x)
        # Roots near the start are wanted, rather than the first that is met.
        first = 1.0 if self._options.to_zero else _FIRST
        radius = first * jnp.where(size > 0, size, 1)
        zero = jnp.zeros([], x.dtype)
        at = self._place(x, r, self._value_of(r), model)
        count = jnp.zeros([], jnp.int32)
        state = Region(model, scale, radius, zero, jnp.ones([], bool), at.norm, count)
        code = jnp.where(self._is_flat(at, state), _GRADIENT, RUNNING)
        is_finite = jnp.isfinite(at.value) & jnp.isfinite(at.norm)
        return at, state, jnp.where(is_finite, code, _NOT_FINITE)

    def step(self, at: Place, state: Region) -> tuple[Place, Region, Any, jax.Array]:
        fun, box = self._problem.fun, self._problem.box
        radius, damping, scale = state.radius, state.damping, state.scale
        told = state.model.propose(self._linear, at.x, scale, radius, damping, box)
        x = at.x + told.s
        if box is not None:
            x = jnp.clip(x, *box)
        r, push = jax.linearize(fun, x)
        value = self._value_of(r)
        actual = at.value - value
        ratio = actual / jnp.where(told.fall > 0, told.fall, 1)
        is_taken = hold((ratio >= _TAKEN) & (told.fall > 0) & jnp.isfinite(value))
        model = jax.lax.cond(
            is_taken, lambda: self._model_at(x, r, push), lambda: state.model
        )
        new = choose(is_taken, self._place(x, r, value, model), at)
        is_far = value > 100 * at.value
        least = 0.5 if self._options.to_zero else 0.1
        radius, damping = _resized(state, told, actual, ratio, is_far, least)
        is_still = self._is_small(at, told, actual)
        is_plateau = is_still & self._promises_more(at, state, told)
        is_lost = is_plateau & (state.grown >= _GROWTHS)
        grows = is_plateau & ~is_lost & ~state.is_first & jnp.isfinite(value)
        wider = 4 * jnp.maximum(state.radius, told.length)
        region = Region(
            model,
            jnp.where(is_taken, jnp.maximum(scale, model.norms), scale),
            jnp.where(grows, wider, radius),
            damping,
            jnp.zeros([], bool),
            state.first,
            state.grown + is_plateau.astype(jnp.int32),
        )
        is_still = is_still & ~is_plateau
        code = self._code(new, region, value, is_taken, is_still, is_lost)
        return new, region, 1 if self._is_dense else 2, code

    def _promises_more(self, at: Place, state: Region, told: Any) -> jax.Array:
        """Whether the model lowers the value outside of the region, as on a plateau."""
        if self._options.to_zero:
            return told.damping > 0
        return (told.damping > 0) & (self._cosine(at, state.model) > _SLANTED)

    def more(self, state: Region) -> Any:
        """R of J = Q R."""
        if not self._is_dense:
            return None
        return state.model.r * state.model.norms[None]

    def _linear(self, x: jax.Array) -> tuple[Any, jax.Array]:
        """The derivative along a vector and the residuals, both weighted."""
        r, push = jax.linearize(self._problem.fun, x)
        w, r = self._weighted(r)
        return push if w is None else lambda v: w * push(v), r

    def _weighted(self, r: jax.Array) -> Any:
        return weighted(self._options.loss, self._problem.number, r)

    def _value_of(self, r: jax.Array) -> jax.Array:
        return value_of(self._options.loss, self._problem.number, r)

    def _model_at(self, x: jax.Array, r: jax.Array, push: Any) -> Any:
        w, r = self._weighted(r)
        return self._model(push, len(x), w, r)

    def _place(self, x: jax.Array, r: jax.Array, value: Any, model: Any) -> Place:
        size = [r if self._options.to_zero else model.grad]
        if self._problem.box is not None:
            lower, upper = self._problem.box
            size = [jnp.clip(-model.grad, lower - x, upper - x)]
        return Place(x, r, value, largest(size, x.dtype))

    def _is_flat(self, at: Place, state: Region) -> jax.Array:
        """Whether the gradient is small, by default as a cosine of r and columns of J.

        For roots, whether the residuals are, by default relative to those at the start.
        """
        if self._options.to_zero:
            return at.norm <= self._problem.limit(state.first)
        if self._is_absolute:
            return at.norm <= self._gradient
        return self._cosine(at, state.model) <= self._gradient

    def _cosine(self, at: Place, model: Any) -> jax.Array:
        """The largest cosine of the angle between r and a column of J."""
        size = model.norms * jnp.sqrt(2 * at.value)
        cosines = jnp.abs(model.grad) / jnp.where(size > 0, size, 1)
        if self._problem.box is not None:
            cosines = jnp.where(
                is_free(at.x, model.grad, self._problem.box), cosines, 0
            )
        return jnp.max(jnp.where(size > 0, cosines, 0))

    def _is_small(self, at: Place, told: Any, actual: jax.Array) -> jax.Array:
        """Whether a step changes the value too little, as was predicted."""
        eps = float(jnp.finfo(at.x.dtype).eps)
        # Where rounding hides the decrease, no tolerance helps.
        tol = eps if self._value is OFF else jnp.maximum(self._value, eps)
        most = tol * at.value
        is_small = (jnp.abs(actual) <= most) & (told.fall <= most)
        return is_small & (actual <= 2 * told.fall) | ~(told.fall > 0)

    def _code(
        self,
        new: Place,
        region: Region,
        value: Any,
        is_taken: Any,
        is_still: Any,
        is_lost: Any,
    ) -> jax.Array:
        """The code, where steps are too small, or lead nowhere."""
        size = _norm(region.scale * new.x)
        is_nothing = ~is_taken & (region.radius <= self._problem.eps * size)
        is_lost = is_lost | is_nothing
        failure = jnp.where(self._is_rounding(new, region), _VALUE, _FAILED)
        failure = jnp.where(jnp.isfinite(value), failure, _NOT_FINITE)
        code = jnp.where(is_lost, failure, RUNNING)
        if self._step is not OFF:
            is_short = is_taken & (region.radius <= self._step * size)
            code = jnp.where(is_short, _STEP, code)
        code = jnp.where(is_still, _VALUE, code)
        if self._options.to_zero:
            code = self._at_end(new, region, code)
        code = jnp.where(self._is_flat(new, region), _GRADIENT, code)
        return jnp.where(jnp.isfinite(new.norm), code, _NOT_FINITE)

    def _at_end(self, new: Place, region: Region, code: jax.Array) -> jax.Array:
        """The code for roots where no tolerance is met."""
        is_end = (code != RUNNING) & (code != _NOT_FINITE)
        end = jnp.where(self._is_rounding(new, region), _PRECISE, _FAILED)
        return jnp.where(is_end, end, code)

    def _is_rounding(self, at: Place, region: Region) -> jax.Array:
        """Whether the residuals are the rounding error of the parameters."""
        error = self._problem.eps * jnp.sum(region.model.norms * jnp.abs(at.x))
        return largest([at.r], at.x.dtype) <= 16 * error


def _resized(
    state: Region, told: Any, actual: Any, ratio: Any, is_far: Any, most: float
) -> tuple[jax.Array, jax.Array]:
    """The next radius and a damping to try there."""
    radius = jnp.where(
        state.is_first, jnp.minimum(state.radius, told.length), state.radius
    )
    # Where the parabola through both values with the slope has its minimum.
    least = 0.5 * told.slope / (told.slope + jnp.minimum(actual, 0))
    factor = jnp.where(actual >= 0, 0.5, jnp.maximum(least, most))
    factor = jnp.where(is_far | ~jnp.isfinite(factor), most, factor)
    is_poor = ~(ratio > 0.25)
    grows = (ratio >= 0.75) | (told.damping == 0)
    small = factor * jnp.minimum(radius, 10 * told.length)
    large = jnp.where(grows, 2 * told.length, radius)
    damping = jnp.where(grows, 0.5 * told.damping, told.damping)
    damping = jnp.where(is_poor, told.damping / factor, damping)
    return jnp.where(is_poor, small, large), damping


def _norm(v: jax.Array) -> jax.Array:
    """The Euclidean norm, also where squares of the elements overflow."""
    top = jnp.max(jnp.abs(v))
    safe = jnp.where(top > 0, top, 1)
    return top * jnp.sqrt(jnp.sum((v / safe) ** 2))
