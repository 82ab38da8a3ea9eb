"""Sequential quadratic programming: constraints of functions of few parameters.

Each step d minimizes a quadratic model within the linearized constraints,

    min  df·d + d·B d / 2   where   l <= c + J d <= u   and   x + d is within bounds,

and its multipliers m are the next ones.  B is a damped BFGS matrix of the Lagrangian
f + m·c (Powell, 1978, A fast algorithm for nonlinearly constrained optimization
calculations, DOI 10.1007/BFb0067703), the program is solved by `interior.py`, and the
step is as long as the merit function f + w·|c beyond [l, u]| falls, with weights

    w = max(|m|, (w + |m|) / 2)                              (Powell, equation 4.3)

If the full step does not lower it, a second-order correction is tried, the shortest
further step that takes the active constraints at x + d to their limits (Nocedal and
Wright, 2006, Numerical Optimization, section 18.3); then ever shorter steps along d.

Elastic mode: if the linearized constraints are inconsistent, or multipliers very large,
a step may violate them at a cost of y²/2 e, with a small e (Gill, Murray and Saunders,
2005, SNOPT, DOI 10.1137/S0036144504446096, section 4.3, with a sum of distances).  If
that is stationary for the smallest e, the constraints have no solution near x.

All derivatives are taken at each point, so that a step of full length takes one
evaluation.  A run ends, before a step, by the error of the optimality conditions or by
the predicted decrease, like that of BFGS (`watch.py`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..._linesearch.line import choose
from . import interior
from .augmented import Constrained, excess
from .bundle import Solver, empty_history, record, while_loop
from .loop import Inputs, Setup
from .pack import Flat
from .pairs import times
from .point import Place, Points, Units
from .result import Code, Result
from .scaling import greatest
from .watch import OFF, in_a_row, resolve_tolerances


# The largest numbers of parameters and of constraints for which this is the default.
FEW, FEW_ROWS = 100, 200
# Trials of a search, the decrease that it asks for, and steps of a quadratic program.
_TRIALS, _ARMIJO, _INNER = 30, 1e-4, 100
# Steps that rounding hides, after which a run ends.
_PATIENCE = 3
# Steps without a smaller violation, after which the constraints seem to have no
# solution.
_POOR = 100


class Run(NamedTuple):
    """The state between two steps.

    y, w: multipliers and weights of the constraints, in the units of the run.
    curvature: B.
    is_fresh: whether B is the identity.
    soft: 0, or e in elastic mode; `softness`: that of the next one.
    steepest: the largest gradient so far, in the caller's units.
    least: the least violation so far; `poor`: steps since it fell.
    idle: consecutive short steps that hardly change the value.
    still: consecutive steps of which rounding hides the predicted decrease.
    """

    at: Place
    units: Units
    y: jax.Array
    w: jax.Array
    curvature: jax.Array
    is_fresh: jax.Array
    soft: jax.Array
    softness: jax.Array
    steepest: jax.Array
    least: jax.Array
    poor: jax.Array
    idle: jax.Array
    still: jax.Array
    steps: jax.Array
    evaluations: jax.Array
    code: jax.Array
    history: Any


class _Direction(NamedTuple):
    """A solution of the quadratic program `p`.

    y, w: its multipliers, and the weights of the merit function for it.
    fall: by how much that falls along d to first order; fails: whether it is none.
    """

    p: interior.Program
    d: jax.Array
    y: jax.Array
    w: jax.Array
    fall: jax.Array
    is_on: jax.Array
    fails: jax.Array


class _Trial(NamedTuple):
    """A point of a search; t, shift: the next part of d, its correction if `bends`."""

    at: Place
    t: jax.Array
    shift: jax.Array
    bends: jax.Array
    count: jax.Array
    fits: jax.Array


class Sequential(Solver):
    """The loop for constraints of functions of few parameters."""

    def __init__(self, setup: Setup, both: Callable, inputs: Inputs):
        """both: as for `Solver`; the second part of its aux is `Opened.values`."""
        super().__init__(setup, both, inputs)
        self._points = Points(both, inputs)
        given, dtype = inputs.tol, self._dtype
        number = lambda x: jnp.asarray(self._eps**0.5 if x is None else x, dtype)
        self._flat, self._feasible = number(given.gradient), number(given.violation)
        self._rules = resolve_tolerances(given, inputs.moving, dtype, True)

    def begin(self) -> Run:
        at, units = self._points.first()
        zero, yes, none = jnp.zeros([], jnp.int32), jnp.ones([], bool), 0 * at.norm
        run = Run(
            at,
            units,
            y=jnp.zeros_like(at.c),
            w=jnp.zeros_like(at.c),
            curvature=jnp.eye(at.xs.size, dtype=self._dtype),
            is_fresh=yes,
            soft=none,
            softness=none + self._eps**0.25,
            steepest=at.norm,
            least=none + jnp.inf,
            poor=zero,
            idle=zero,
            still=zero,
            steps=zero,
            evaluations=zero + 1,
            code=jnp.where(at.is_finite(), Code.RUNNING, Code.NOT_FINITE),
            history=empty_history(self._setup, self._dtype),
        )
        return record(run)

    def finish(self, run: Run) -> Result:
        at, (cost, rows, _) = run.at, run.units
        xs = self.unpack(at.xs)
        _, (_, (values, *_)) = jax.eval_shape(self._both, xs, self._inputs.data)
        leaves, treedef = jax.tree.flatten(values)
        multipliers = Flat(leaves, self._dtype).split(run.y * cost / rows)
        multipliers = treedef.unflatten(multipliers)
        violation = greatest(at.beyond * rows)
        return self._result(run, xs, multipliers=multipliers, violation=violation)

    def unpack(self, x: jax.Array) -> list:
        return self._points.unpack(x)

    def _aux(self, xs: list) -> Any:
        return self._both(xs, self._inputs.data)[1][0]

    # --- a step ----------------------------------------------------------------------

    def _step(self, run: Run) -> Run:
        found = self._direction(run)
        run, misfit = self._judged(run, found)
        # Whether the elastic program is stationary where there is a violation.
        small = self._flat * jnp.maximum(1, greatest(found.y)) * run.units.cost
        is_elastic = (run.soft > 0) & ~found.fails & (misfit > self._feasible)
        rests = is_elastic & (run.at.norm <= small)
        trial = self._search(run, found, ~rests)
        taken = self._taken(run, trial, found)
        refused = self._refused(run, found, misfit <= self._feasible, rests)
        new = choose(trial.fits, taken, refused)
        return record(new._replace(evaluations=run.evaluations + trial.count))

    def _direction(self, run: Run) -> _Direction:
        at, (lower, upper) = run.at, self._points.box
        box = lower - at.xs, upper - at.xs
        low, high = map(jnp.append, (at.low - at.c, at.high - at.c), box)
        soft = jnp.broadcast_to(run.soft, at.c.shape)
        p = interior.Program(run.curvature, at.g, at.slopes, (low, high), soft)
        tol = jnp.asarray(float(jnp.finfo(self._dtype).eps) ** 0.6, self._dtype)
        found = interior.solve(p, tol, jnp.int32(_INNER))
        y, d = found.y[: at.c.size], jnp.clip(found.x, *box)
        # With little curvature the program seems unbounded; its step is long.
        fails = ~jnp.isfinite(d).all() | (found.code > Code.UNBOUNDED)
        # With steep multipliers the elastic program is the better one.
        fails |= (run.soft == 0) & (greatest(y) > self._eps**-0.4)
        left = excess(at.c + times(at.slopes, d), at.low, at.high)
        w = jnp.maximum(jnp.abs(y), (run.w + jnp.abs(y)) / 2)
        # A row that is violated more has the least weight for which the merit falls.
        w = jnp.where(jnp.abs(left) > jnp.abs(at.beyond), jnp.abs(y), w)
        fall = jnp.sum(w * (jnp.abs(at.beyond) - jnp.abs(left))) - jnp.sum(at.g * d)
        is_on = (found.y != 0) | jnp.append(at.low == at.high, lower == upper)
        return _Direction(p, d, y, w, fall, is_on, fails)

    def _judged(self, run: Run, found: _Direction) -> tuple[Run, jax.Array]:
        """The run with its code before the step, and the misfit of its point."""
        at, units, (_, d, y, *_) = run.at, run.units, found
        norm = jnp.where(found.fails, at.norm, self._points.norm(at, y, units))
        misfit, value = self._points.misfit(at, units), jnp.abs(at.value)
        away = jnp.where(y > 0, at.high - at.c, jnp.where(y < 0, at.c - at.low, 0))
        slack = greatest(y * away) * units.cost
        steepest = jnp.maximum(run.steepest, norm)
        rules = self._rules
        scale = 1 if rules.is_absolute else jnp.minimum(run.steepest, 1)
        is_flat = norm <= self._flat * scale
        is_flat &= slack <= self._flat * jnp.maximum(1, value)
        code = jnp.where(is_flat, Code.GRADIENT, Code.RUNNING)
        if rules.rest is not OFF:
            gain = jnp.abs(jnp.sum(at.g * d)) + jnp.sum(jnp.abs(y * at.beyond))
            is_little = gain * units.cost <= rules.rest * jnp.maximum(1, value)
            is_little &= norm <= rules.gentle * steepest
            code = jnp.where(is_little & ~is_flat, Code.VALUE, code)
        # Rounding of the value hides the next steps.
        is_still = ~found.fails & (found.fall <= self._noise(run))
        run = run._replace(still=in_a_row(is_still, run.still))
        code = jnp.where(run.still >= _PATIENCE, self._ended(run), code)
        is_end = (misfit <= self._feasible) & ~found.fails & (code != Code.RUNNING)
        code = jnp.where(is_end, code, Code.RUNNING)
        run = run._replace(at=at._replace(norm=norm), steepest=steepest, code=code)
        return run._replace(y=jnp.where(is_end, y, run.y)), misfit

    def _search(self, run: Run, found: _Direction, may: jax.Array) -> _Trial:
        """The full step, its correction, or the longest part with a lower merit."""
        at, (p, d, _, w, fall, is_on, fails) = run.at, found
        merit = lambda at: at.value / run.units.cost + jnp.sum(w * jnp.abs(at.beyond))
        first = merit(at)
        noise = self._noise(run)

        def trial(last):
            bends, t = last.bends, last.t
            is_full = (last.count == 0) | bends
            x = self._points.moved(
                at.xs, jnp.where(bends, d + last.shift, t * d), is_full
            )
            new = self._points.at(x, run.units)
            rise = merit(new) - first
            fits = new.is_finite() & (rise <= noise - _ARMIJO * t * fall)
            farther = jnp.sum(w * (jnp.abs(new.beyond) - jnp.abs(at.beyond))) >= 0
            bends = (last.count == 0) & ~fits & farther & new.is_finite()
            target = jnp.clip(new.c, new.low, new.high) - new.c
            shift = jax.lax.cond(
                bends,
                lambda: interior.correction(p, is_on, target),
                lambda: jnp.zeros_like(d),
            )
            # The minimum of a parabola through the merit and its slope.
            part = fall * t / (2 * (rise + fall * t))
            part = jnp.where(jnp.isfinite(part), jnp.clip(part, 0.1, 0.5), 0.25)
            t = jnp.where(last.bends, t, part * t)
            return _Trial(new, t, shift, bends, last.count + 1, fits)

        one, no = jnp.ones([], self._dtype), jnp.zeros([], bool)
        last = _Trial(at, one, jnp.zeros_like(d), no, jnp.zeros([], jnp.int32), no)
        may = may & (run.code == Code.RUNNING) & ~fails & (fall > 0)
        return while_loop(lambda r: may & ~r.fits & (r.count < _TRIALS), trial, last)

    def _noise(self, run: Run) -> jax.Array:
        """The rounding error of the value, in the units of the run."""
        at, cost = run.at, run.units.cost
        size = jnp.maximum(jnp.abs(at.value) / cost, jnp.sum(jnp.abs(at.g * at.xs)))
        return 8 * self._eps * size

    def _taken(self, run: Run, trial: _Trial, found: _Direction) -> Run:
        old, new, units, y = run.at, trial.at, run.units, found.y
        norm, misfit = self._points.norm(new, y, units), self._points.misfit(new, units)
        s = new.xs - old.xs
        change = new.slope(y) - old.slope(y)
        curvature, is_fresh = _updated(run.curvature, s, change, run.is_fresh)
        falls = misfit < 0.9 * run.least
        is_fit = misfit <= self._feasible
        poor = in_a_row(~(falls | is_fit), run.poor)
        calm = self._calm(old, new, s, is_fit)
        code = jnp.where(poor >= _POOR, Code.INFEASIBLE, calm)
        # As where a constraint has no slope, so that no multiplier is large enough.
        is_same = jnp.abs(new.value - old.value) <= self._flat * jnp.abs(new.value)
        idle = in_a_row(is_fit & is_same & (trial.count > 2), run.idle)
        code = jnp.where(idle >= 2 * _PATIENCE, self._ended(run), code)
        return run._replace(
            at=new._replace(norm=norm),
            y=y,
            w=found.w,
            curvature=curvature,
            is_fresh=is_fresh,
            soft=jnp.zeros_like(run.soft),
            steepest=jnp.maximum(run.steepest, norm),
            least=jnp.where(falls, misfit, run.least),
            poor=poor,
            idle=idle,
            steps=run.steps + 1,
            code=jnp.where(new.value < units.floor, Code.UNBOUNDED, code),
        )

    def _calm(self, old: Place, new: Place, s: jax.Array, is_fit: Any) -> jax.Array:
        """The code by the tolerances of value and step that were given, if any."""
        code, given = jnp.asarray(Code.RUNNING), self._inputs.tol
        if given.step is not None and given.step is not OFF:
            code = jnp.where(
                is_fit & (greatest(s) <= given.step * greatest(new.xs)), Code.STEP, code
            )
        if given.value is not None and given.value is not OFF:
            size = jnp.maximum(jnp.abs(old.value), jnp.abs(new.value))
            is_still = jnp.abs(new.value - old.value) <= given.value * size
            code = jnp.where(is_fit & is_still, Code.VALUE, code)
        return code

    def _refused(self, run: Run, found: _Direction, is_fit: Any, rests: Any) -> Run:
        """The run without a step: elastic, more firmly so, without B, or at its end."""
        is_firm = run.softness <= self._eps**0.5
        softer = jnp.where(rests, 0.1, 1) * run.softness
        turns = (run.soft == 0) & found.fails
        again = ~turns & ~rests & ~run.is_fresh
        end = jnp.where(is_fit, self._ended(run), Code.INFEASIBLE)
        end = jnp.where(turns | again | (rests & ~is_firm), Code.RUNNING, end)
        plain = jnp.eye(len(found.d), dtype=self._dtype)
        return run._replace(
            soft=jnp.where(turns | rests, softer, 0),
            softness=softer,
            curvature=jnp.where(again, plain, run.curvature),
            is_fresh=run.is_fresh | again,
            code=jnp.where(run.code == Code.RUNNING, end, run.code),
        )

    def _ended(self, run: Run) -> jax.Array:
        """The code where steps no longer help."""
        is_gentle = run.at.norm <= self._flat**0.5 * run.steepest
        return jnp.where(is_gentle, Code.VALUE, Code.SEARCH)


def by_size(setup: Setup, both: Callable, inputs: Inputs) -> Sequential | Constrained:
    """This method for few parameters and constraints, else an augmented Lagrangian."""
    _, (_, (values, *_)) = jax.eval_shape(both, inputs.moving, inputs.data)
    rows = sum(x.size for x in jax.tree.leaves(values))
    size = Flat(inputs.moving, None).size
    is_small = size <= FEW and rows <= FEW_ROWS
    is_wide = all(jnp.finfo(x.dtype).bits >= 32 for x in inputs.moving)
    kind = Sequential if is_small and is_wide else Constrained
    return kind(setup, both, inputs)


def _updated(b: jax.Array, s: jax.Array, change: jax.Array, is_fresh: Any) -> tuple:
    """B with the pair of a step, damped; whether it is still the identity."""
    sy, ss, yy = (jnp.sum(u * v) for u, v in ((s, change), (s, s), (change, change)))
    is_curved = sy > jnp.finfo(s.dtype).eps * ss
    # The first pair sets the scale.
    scale = jnp.where(is_fresh & is_curved, yy / jnp.where(is_curved, sy, 1), 1)
    b = scale * b
    bs = times(b, s)
    sbs = jnp.sum(s * bs)
    is_low = sy < 0.2 * sbs
    part = jnp.where(is_low, 0.8 * sbs / jnp.where(is_low, sbs - sy, 1), 1)
    r = part * change + (1 - part) * bs
    sr = jnp.sum(s * r)
    fits = (sbs > jnp.finfo(s.dtype).tiny) & (sr > 0) & jnp.isfinite(yy)
    sbs, sr = jnp.where(fits, sbs, 1), jnp.where(fits, sr, 1)
    new = b - jnp.outer(bs, bs) / sbs + jnp.outer(r, r) / sr
    return jnp.where(fits, new, b), is_fresh & ~fits
