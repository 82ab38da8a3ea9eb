"""Constraints by an augmented Lagrangian; each of its rounds is a minimization.

With z = c(x) + m / r, for constraints l <= c(x) <= u, multipliers m and penalties r:

    x = argmin f(x) + r/2 |z - P(z)|²,   P the projection onto [l, u]
    m = r (z - P(z)),   kept within 10^9 times |df| / |dc|;   then df + sum m dc = 0
    r = 10 r   if |c - P(z)| has not fallen to a quarter

The penalty of an array of constraints is divided by the square of its slope at the
start, so that the unit of a constraint does not matter.

Nocedal and Wright, 2006, Numerical Optimization, chapter 17; Birgin and Martínez, 2014,
Practical Augmented Lagrangian Methods (ALGENCAN), for bounded multipliers and for the
first penalty; ours is ten times as large, because it must stop functions that decrease
without limit outside.  Rounds are solved more and more precisely, and start where the
last one ended.  A round without a minimum returns to its start, with a larger penalty.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..._linesearch.line import choose, largest
from .bundle import Solver, empty_history
from .loop import Inputs, Loop, Run, Setup
from .result import Code, Result
from .watch import FAR, OFF, Rules, in_a_row


# The ratio to which a misfit must fall, and the factor of the penalty if it does not.
_FALL, _RAISE = 0.25, 10.0
# Limits: rounds without such a fall, after which the constraints seem to have no
# solution; rounds without a change of the value; and all rounds.
_POOR, _CALM, _ROUNDS = 10, 2, 100
# Steps of a round: a round that takes more is heading where there is no minimum.
_STEPS = 500
_LARGEST_MULTIPLIER = 1e9


class Point(NamedTuple):
    """Parameters, with the value of the function and the largest |dL| element."""

    xs: list
    value: jax.Array
    norm: jax.Array


class Rounds(NamedTuple):
    """The state between two rounds.

    multipliers: a tree like the values of the constraints.
    weights: for each of these arrays, 1 / its slope at the start.
    scale: the largest element of df at the start.
    floor: a value so low that there seems to be no minimum.
    misfit: the largest |c - P(z)|, relative to limits above 1; 0 at a solution.
    violation: the largest distance of a value from its limits.
    steepest: the largest gradient so far.
    precision: the precision to which the next round is solved.
    poor, calm: consecutive rounds without a decrease of the misfit, and without a
        change of the value at feasible parameters.
    """

    at: Point
    multipliers: Any
    weights: Any
    scale: jax.Array
    floor: jax.Array
    penalty: jax.Array
    misfit: jax.Array
    violation: jax.Array
    steepest: jax.Array
    precision: jax.Array
    steps: jax.Array
    evaluations: jax.Array
    rounds: jax.Array
    poor: jax.Array
    calm: jax.Array
    code: jax.Array
    history: Any


class Constrained(Solver):
    """The loop for constraints, with rounds of any number of steps."""

    def __init__(self, setup: Setup, both: Callable, inputs: Inputs):
        """both: as for `Solver`; the second part of its aux is `Opened.values`."""
        super().__init__(setup, both, inputs)
        given, eps, dtype = inputs.tol, self._eps, self._dtype
        root = eps**0.5
        number = lambda x, default: jnp.asarray(default if x is None else x, dtype)
        self._flat = number(given.gradient, root)
        self._feasible = number(given.violation, root)
        value = OFF if given.value is OFF else number(given.value, eps)
        step = OFF if given.step in (OFF, None) else number(given.step, 0)
        is_absolute = given.gradient is not None
        # Each round has a gradient tolerance of its own.
        self._rules = Rules(None, value, step, OFF, OFF, OFF, is_absolute)
        # Bound of the penalty: above it, rounding hides the function.
        self._most = 0.01 / eps

    def begin(self) -> Rounds:
        xs, dtype = self._inputs.moving, self._dtype
        (value, values), slope, limits = jax.vjp(self._outputs, xs, has_aux=True)
        scale, weights = self._slopes(value, values, slope)
        beyond = jax.tree.leaves(jax.tree.map(excess, values, *limits))
        ws = jax.tree.leaves(weights)
        sizes = [w * x.astype(dtype) for w, x in zip(ws, beyond, strict=True)]
        square = sum((jnp.sum(x**2) for x in sizes), jnp.zeros([], dtype))
        penalty = jnp.maximum(scale, jnp.abs(value)) / jnp.maximum(1, square / 2)
        size = jnp.maximum(largest(xs, dtype), 1)
        is_fine = jnp.isfinite(value) & jnp.isfinite(square)
        zero, number = jnp.zeros([], jnp.int32), lambda x: jnp.asarray(x, dtype)
        return Rounds(
            Point(xs, value, number(jnp.inf)),
            jax.tree.map(jnp.zeros_like, values),
            weights,
            scale,
            value - FAR * jnp.maximum(jnp.abs(value), scale * size),
            jnp.clip(100 * penalty, 1e-6 * scale, 1e-2 * self._most * scale),
            misfit=number(jnp.inf),
            violation=largest(beyond, dtype),
            steepest=number(0),
            precision=jnp.maximum(self._flat, self._flat**0.5),
            steps=zero,
            evaluations=zero + 1,
            rounds=zero,
            poor=zero,
            calm=zero,
            code=jnp.where(is_fine, Code.RUNNING, Code.NOT_FINITE),
            history=empty_history(self._setup, self._dtype),
        )

    def _slopes(self, value: Any, values: Any, slope: Callable) -> tuple[Any, Any]:
        """The largest slope of the function, and 1 / the slopes of the constraints.

        For an array of constraints this is the slope of a sum with random signs, which
        costs as much as a single gradient.
        """
        zeros, unit = jax.tree.map(jnp.zeros_like, values), jnp.ones_like(value)
        size = lambda ct: largest(slope(ct)[0], self._dtype)
        leaves, treedef = jax.tree.flatten(zeros)

        def steep(i, x):
            signs = jax.random.rademacher(jax.random.key(i), x.shape, x.dtype)
            ct = treedef.unflatten([*leaves[:i], signs, *leaves[i + 1 :]])
            return 1 / within(size((jnp.zeros_like(value), ct)))

        weights = treedef.unflatten([steep(i, x) for i, x in enumerate(leaves)])
        return within(size((unit, zeros))), weights

    def finish(self, run: Rounds) -> Result:
        more = {"multipliers": run.multipliers, "violation": run.violation}
        return self._result(run, run.at.xs, **more)

    def unpack(self, xs: list) -> list:
        return xs

    def _aux(self, xs: list) -> Any:
        return self._all(xs)[1][0]

    def _step(self, old: Rounds) -> Rounds:
        loop, run = self._minimized(old)
        xs = loop.unpack(run.at.xs)
        value, (_, constraints) = self._all(xs)
        is_lost = (run.code == Code.UNBOUNDED) | (value < old.floor)
        is_lost = is_lost | ~jnp.isfinite(run.at.value)
        multipliers, misfits, beyond = self._measured(old, constraints)
        misfit, violation = (largest(x, self._dtype) for x in (misfits, beyond))
        is_fit = (misfit <= self._feasible) & ~is_lost
        is_slow = is_lost | (misfit > _FALL * old.misfit) & ~is_fit
        # The last digits of the value hide the next step, and a penalty would cost
        # more.
        is_noisy = ~is_fit & (run.code != Code.GRADIENT) & (misfit <= self._eps**0.5)
        is_noisy = is_noisy & is_slow & ~is_lost
        is_same = jnp.abs(value - old.at.value) <= 8 * self._eps * jnp.abs(value)
        found = Point(xs, value, run.at.norm), multipliers, misfit, violation
        before = old.at, old.multipliers, old.misfit, old.violation
        at, multipliers, misfit, violation = choose(is_lost, before, found)
        multipliers = choose(is_noisy, old.multipliers, multipliers)
        new = old._replace(
            at=at,
            multipliers=multipliers,
            penalty=jnp.where(is_slow & ~is_noisy, _RAISE, 1) * old.penalty,
            misfit=misfit,
            violation=violation,
            steepest=run.seen.steepest,
            precision=jnp.maximum(1e-3 * self._flat, 0.1 * old.precision),
            steps=run.steps,
            evaluations=run.evaluations + 1,
            rounds=old.rounds + 1,
            poor=in_a_row(is_slow, old.poor),
            calm=in_a_row(is_fit & is_same, old.calm),
            history=run.history,
        )
        return new._replace(code=self._judged(new, run, is_fit, is_lost))

    def _minimized(self, old: Rounds) -> tuple[Loop, Run]:
        """The minimization of one augmented Lagrangian, which continues the counts."""
        inputs, rules = self._inputs, self._rules._replace(gradient=old.precision)
        data = inputs.data, old.multipliers, old.weights, old.penalty
        inputs = inputs._replace(moving=old.at.xs, data=data, tol=rules)
        loop = Loop(self._setup._replace(has_aux=False), self._lagrangian, inputs)
        run = loop.begin()
        seen, is_first = run.seen, old.rounds == 0
        steepest = jnp.maximum(old.steepest, seen.steepest)
        run = run._replace(
            seen=seen._replace(steepest=steepest),
            steps=old.steps,
            evaluations=old.evaluations + 1,
            history=choose(is_first, run.history, old.history),
        )
        limit = jnp.minimum(inputs.max_steps, old.steps + _STEPS)
        return loop, loop.advance(run, limit)

    def _judged(self, new: Rounds, run: Run, is_fit: Any, is_lost: Any) -> jax.Array:
        """The code after a round; is_lost: whether there was no minimum."""
        scale = 1 if self._rules.is_absolute else jnp.minimum(new.steepest, 1)
        is_flat = new.at.norm <= self._flat * scale
        is_spent = (new.poor >= _POOR) | (
            new.penalty > self._most * jnp.maximum(new.scale, 1)
        )
        is_near = new.misfit <= self._feasible**0.5
        code = jnp.where(new.rounds >= _ROUNDS, Code.LIMIT, Code.RUNNING)
        spent = jnp.where(is_near, Code.SEARCH, Code.INFEASIBLE)
        code = jnp.where(is_spent, spent, code)
        is_nan = run.code == Code.NOT_FINITE
        lost = jnp.where(is_nan, Code.NOT_FINITE, Code.UNBOUNDED)
        code = jnp.where(is_spent & is_lost, lost, code)
        is_gentle = new.at.norm <= self._flat**0.5 * new.steepest
        calm = jnp.where(is_gentle, Code.VALUE, Code.SEARCH)
        code = jnp.where(is_fit & (new.calm >= _CALM), calm, code)
        code = jnp.where(is_fit & is_flat, Code.GRADIENT, code)
        is_bad_start = is_nan & (new.steps == 0)
        return jnp.where(is_bad_start, Code.NOT_FINITE, code)

    def _measured(self, old: Rounds, constraints: Any) -> tuple[Any, list, list]:
        """The next multipliers, the misfits and the distances beyond limits."""

        def one(m, w, c, low, high):
            r = (old.penalty * w**2).astype(c.dtype)
            z = c + m / r
            most = (_LARGEST_MULTIPLIER * jnp.maximum(old.scale, 1) * w).astype(c.dtype)
            new = jnp.clip(r * excess(z, low, high), -most, most)
            misfit = jnp.where(z > high, c - high, jnp.where(z < low, c - low, -m / r))
            sides = (jnp.where(jnp.isfinite(x), jnp.abs(x), 0) for x in (low, high))
            scale = jnp.maximum(1, jnp.maximum(*sides))
            return new, misfit / scale, excess(c, low, high)

        found = jax.tree.map(one, old.multipliers, old.weights, *constraints)
        treedef = jax.tree.structure(old.multipliers)
        rows = treedef.flatten_up_to(found)
        new, misfits, beyond = ([row[i] for row in rows] for i in range(3))
        return treedef.unflatten(new), misfits, beyond

    def _lagrangian(self, xs: list, data: Any) -> tuple[jax.Array, None]:
        arrays, multipliers, weights, penalty = data
        value, (_, constraints) = self._both(xs, arrays)
        value = value.astype(self._dtype)

        def cost(m, w, c, low, high):
            r = penalty * w**2
            x = excess(c + m / r.astype(c.dtype), low, high)
            return r / 2 * jnp.sum(x.astype(self._dtype) ** 2)

        costs = jax.tree.map(cost, multipliers, weights, *constraints)
        return value + sum(jax.tree.leaves(costs)), None

    def _outputs(self, xs: list) -> tuple[Any, Any]:
        value, (_, (values, *limits)) = self._all(xs)
        return (value, values), limits

    def _all(self, xs: list) -> Any:
        value, more = self._both(xs, self._inputs.data)
        return value.astype(self._dtype), more


def excess(z: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    """How far `z` is beyond its limits; NaN if `z` is NaN, but never from inf - inf."""
    return jnp.where(z > high, z - high, jnp.where(z >= low, 0, z - low))


def within(size: jax.Array) -> jax.Array:
    """A slope by which to scale; 1 if the slope at the start is 0."""
    is_fine = jnp.isfinite(size) & (size > 0)
    return jnp.where(is_fine, jnp.clip(size, 1e-6, 1e12), 1)
