"""The loop: take steps of a transformation until a stopping rule holds.

The function occurs twice in the program, at the start and in the loop.  A
transformation that ends in a line search has already evaluated the next point, and
stores value and gradient in its state; for others they are computed at the next point.

If a search finds no lower value, the step is rejected and the memory cleared, so that
the next search is along the gradient.  If that fails, too, the run ends.  The memory of
a transformation is cleared in an outer loop, since a select in each step would copy it;
the L-BFGS of `quasi_newton.py` clears its own memory, and then searches as a new run
would.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..._engine import rules as rx
from ..._linesearch.line import choose, hold, largest
from ...tree import conj
from . import quasi_newton
from .bundle import Solver, empty_history, record, while_loop
from .frame import Frame, open_closure
from .pack import Pack
from .pairs import each
from .result import Code, History
from .watch import (
    OFF,
    PATIENCE,
    PATIENCE_OF_SEARCHES,
    Rules,
    Watch,
    fails,
    in_a_row,
    little_to_gain,
    resolve_tolerances,
    search_in,
    unit_of,
    watch,
)


_GIVEN = (
    "`minimize` calls `method.update(updates, state, params)` with the keywords "
    "`value`, `grad` and `value_fn`; for other keywords, write your own loop"
)


class Setup(NamedTuple):
    """The static configuration of a program, besides the function and the shapes.

    frame, args_frame: frames of the parameters and of the further arguments.
    method: for a minimum a transformation; with bounds, a function of them that creates
        it; `None` for the L-BFGS of `quasi_newton.py`.  Otherwise the class of a
        `Stepper`, and its arguments besides the problem.
    has_aux: whether the function returns an auxiliary output.
    length: length of the history in steps; `None` without history.
    name: what the user calls the function.
    kind: what it returns: a "value" to minimize; "residuals", any tree; "root", a tree
        like the parameters, that is to be 0; "fixed_point", one to be equal to them.
    is_local: whether all moving arrays are known to be on one device.
    constraints: the static part of the constraints; `None` without any.
    prox: the frame of the operator of the nonsmooth part; `None` without one.
    """

    frame: Frame
    args_frame: Frame
    method: Any
    has_aux: bool
    length: int | None
    name: str
    kind: str
    is_local: bool = False
    constraints: Any = None
    prox: Any = None


class Inputs(NamedTuple):
    """The arrays passed to a program.

    moving: the initial parameters.
    data: all other arrays that the function reads.
    box: lower and upper bounds, each for all moving arrays; `None` without bounds.
    weights: the arrays of the operator of the nonsmooth part.
    """

    moving: list
    data: Any
    box: Any
    tol: Any  # `Tolerances`, or resolved `Rules`
    max_steps: Any
    weights: Any = ()


class Place(NamedTuple):
    """Parameters with their value and gradients, the latter divided by `unit`.

    norm, size: the largest element of the gradients and of the parameters.
    """

    xs: list
    value: jax.Array
    grads: list
    norm: jax.Array
    size: jax.Array


class Run(NamedTuple):
    """The state of a running minimization.

    at: the current point; its arrays are concatenated for `quasi_newton.py`.
    state: state of the method, which sees the value and gradients divided by `unit`.
    lowest: the lowest value so far; `seen`: other observations.
    steps, evaluations: counts so far; `tried`: steps since the memory was cleared.
    still_values, still_steps: consecutive steps in which the value or the parameters
        did not change.
    is_stuck: whether the memory has to be cleared.
    """

    at: Place
    lowest: jax.Array
    seen: Watch
    unit: Any
    state: Any
    steps: jax.Array
    evaluations: jax.Array
    tried: jax.Array
    still_values: jax.Array
    still_steps: jax.Array
    is_stuck: jax.Array
    code: jax.Array
    history: History | None


class Loop(Solver):
    """The loop for smooth functions, without constraints or with bounds."""

    def __init__(self, setup: Setup, both: Callable, inputs: Inputs):
        super().__init__(setup, both, inputs)
        # Trace once here, rather than at each place of evaluation.
        self._both, more = open_closure(both, inputs.moving, inputs.data)
        self._data = inputs.data, more
        self._pack, self._searches = self._open_method()
        given = inputs.tol, inputs.moving, self._dtype, self._searches
        is_resolved = isinstance(inputs.tol, Rules)
        self._tol = inputs.tol if is_resolved else resolve_tolerances(*given)

    def _open_method(self) -> tuple[Pack | None, bool]:
        """The packing of the built-in method; whether the method searches lines."""
        setup, inputs, tree = self._setup, self._inputs, self._setup.frame.params
        if setup.method is None:
            return Pack(inputs.moving, setup.is_local), True
        tx, box = setup.method, inputs.box
        tx = tx if box is None else tx(*map(tree, box))
        self._tx = rx.with_keywords(tx, "`method`")
        state = jax.eval_shape(self._tx.init, tree(inputs.moving))
        return None, search_in(state) is not None

    def begin(self) -> Run:
        at = self._start()
        # With bounds the norm is at most the side of the box.
        steep = at.norm if self._inputs.box is None else largest(at.grads, self._dtype)
        seen, unit = watch(at), unit_of(at.value, steep) if self._searches else None
        at = at._replace(grads=_over(unit, at.value, at.grads)[1])
        return self._begun(at, seen, unit, self._new_state(at, unit))

    def _begun(self, at: Place, seen: Watch, unit: Any, state: Any) -> Run:
        code = jnp.where(self._is_flat(at, seen), Code.GRADIENT, Code.RUNNING)
        zero = jnp.zeros([], jnp.int32)
        run = Run(
            at,
            at.value,
            seen,
            unit,
            state,
            steps=zero,
            evaluations=zero + 1,
            tried=zero,
            still_values=zero,
            still_steps=zero,
            is_stuck=jnp.zeros([], bool),
            code=jnp.where(_is_finite(at), code, Code.NOT_FINITE),
            history=empty_history(self._setup, self._dtype),
        )
        return record(run)

    def advance(self, run: Run, limit: jax.Array) -> Run:
        if self._pack or not self._searches:
            return super().advance(run, limit)

        def attempt(r):
            again = hold(r.is_stuck)
            fresh = rx.keep_dtypes(self._new_state(r.at, r.unit), r.state)
            r = r._replace(
                state=choose(again, fresh, r.state),
                tried=jnp.where(again, 0, r.tried),
                is_stuck=jnp.zeros_like(again),
            )
            moves = lambda r: self._goes_on(r, limit) & ~r.is_stuck
            return while_loop(moves, self._step, r)

        return while_loop(lambda r: self._goes_on(r, limit), attempt, run)

    def unpack(self, xs: list) -> list:
        return self._pack.unpack(xs) if self._pack else xs

    def _step(self, run: Run) -> Run:
        return self._built_in(run) if self._pack else self._update(run)

    def _built_in(self, run: Run) -> Run:
        """A step of `quasi_newton.py`."""
        old, unit = run.at, run.unit
        value, again = old.value / unit, hold(run.is_stuck)
        # The newest pair may be from a steep direction, in which its scale leads to
        # steps that are too short to be visible in the value.
        scale = quasi_newton.scale_without_pairs(value, old.grads, old.size)
        tried = jnp.where(again, 0, run.tried)
        run = run._replace(state=run.state.forget(again, scale), tried=tried)
        little = None if self._tol.rest is OFF else little_to_gain(run, self._tol)
        found, pairs = quasi_newton.step(
            *(run.state, old.xs, value, old.grads),
            lambda xs: _over(unit, *self._value_and_grads(xs)),
            scale,
            again,
            little,
        )
        new = self._place(found.xs, found.value * unit, found.grads, unit)
        run = counted(run, pairs, found.count, ~found.is_near)
        is_stuck = fails(run, new, jnp.zeros([], bool))
        end = self._judge(run, new, is_stuck, found.is_hidden)
        is_over = found.is_near & ~found.is_flat
        return _rescaled(end._replace(code=jnp.where(is_over, Code.VALUE, end.code)))

    def _update(self, run: Run) -> Run:
        frame, old = self._setup.frame, run.at
        params, grad, unit = frame.params(old.xs), frame.params(old.grads), run.unit
        value, value_fn = old.value, self._value_fn
        if unit is not None:
            value, value_fn = value / unit, lambda p: self._value_fn(p) / unit
        more = {"value": value, "grad": grad, "value_fn": value_fn}
        try:
            updates, state = self._tx.update(conj(grad), run.state, params, **more)
        except (TypeError, ValueError) as error:
            error.add_note(_GIVEN)
            raise
        xs = frame.pick(rx.apply_updates(params, updates))
        search = search_in(state) if self._searches else None
        if search is None:
            new, count = self._place(xs, *self._value_and_grads(xs)), 1
        else:
            count = search.info.num_linesearch_steps
            grads = frame.pick(search.grad)
            new = self._place(xs, search.value * unit, grads, unit)
        run = counted(run, rx.keep_dtypes(state, run.state), count)
        is_stuck = jnp.zeros([], bool)
        if search is not None:
            is_stuck = fails(run, new, search.info.decrease_error > 0)
        return self._judge(run, new, is_stuck)

    def _judge(self, run, new, is_stuck, is_hidden: Any = False) -> Run:
        """The run with a step, or without it if rejected; is_hidden: as in `Found`."""
        seen = run.seen.after(run.at, new)
        still_values, still_steps = self._still(run, new)
        rests = still_values >= (PATIENCE_OF_SEARCHES if self._searches else PATIENCE)
        rises = jnp.zeros([], bool)
        if self._searches and self._tol.value is not OFF:
            # A search at the limit of precision may oscillate by more than one rounding
            # error; a rise by many does not count as unchanged.
            size = jnp.maximum(jnp.abs(run.at.value), jnp.abs(new.value))
            rises = new.value - run.lowest > 4 * self._tol.value * size
            is_stuck = is_stuck | (rises & rests)
        # Where the gradient is not small, a value that rests says nothing: a search
        # without memory has to find no lower one, and even then it is no success.
        is_small = is_calm = self._is_small(run.at, is_hidden)
        if self._tol.gentle is not OFF:
            is_calm = is_calm | seen.is_gentle(run.at, self._tol.gentle)
            is_stuck = is_stuck | (rests & ~is_calm)
        is_taken = hold(_is_finite(new) & ~is_stuck)
        code = jnp.where(still_steps >= PATIENCE, Code.STEP, Code.RUNNING)
        code = jnp.where(rests, Code.VALUE, code)
        if self._tol.fall is not OFF:
            code = jnp.where(seen.is_slow(new, self._tol.fall), Code.VALUE, code)
        code = jnp.where(self._is_flat(new, seen), Code.GRADIENT, code)
        rests = rests & ~rises
        if self._tol.value is not OFF:
            rests = rests | is_hidden | self._is_rounding(run)
        failure = jnp.where(is_small | rests & is_calm, Code.VALUE, Code.SEARCH)
        refusal = jnp.where(run.tried == 1, failure, Code.RUNNING)
        refusal = jnp.where(is_stuck, refusal, Code.NOT_FINITE)
        falls_off = ~is_taken & (refusal != Code.RUNNING) & run.seen.falls_off(run.at)
        code = jnp.where(is_taken, code, refusal)
        is_unbounded = seen.has_no_minimum(new.value) | falls_off
        is_lowest = is_taken & (new.value < run.lowest)
        end = run._replace(
            at=choose(is_taken, new, run.at),
            seen=seen,
            lowest=jnp.where(is_lowest, new.value, run.lowest),
            still_values=still_values,
            still_steps=jnp.where(is_taken, still_steps, run.still_steps),
            is_stuck=is_stuck,
            code=jnp.where(is_unbounded, Code.UNBOUNDED, code),
        )
        return record(end)

    def _is_flat(self, at: Place, seen: Watch) -> jax.Array:
        """Whether the gradient is small, by default relative to the problem's scale."""
        if self._tol.is_absolute:
            return at.norm <= self._tol.gradient
        limit = self._tol.gradient * jnp.minimum(seen.steepest, 1)
        # Parameters that grow may fall without limit, but not in a corner of the box.
        return (at.norm <= limit) & (seen.growths == 0) | (at.norm == 0)

    def _is_small(self, at: Place, is_hidden: Any) -> jax.Array:
        """Whether the slope hardly matters against the value and the parameters.

        is_hidden: whether rounding of the value seems to hide what is left.
        """
        slope, size = at.norm * jnp.maximum(1, at.size), jnp.abs(at.value)
        least = jnp.where(is_hidden, 16 * jnp.finfo(self._dtype).eps ** 0.5 * size, 0)
        return slope <= jnp.maximum(least, self._tol.gradient * jnp.minimum(1, size))

    def _still(self, run: Run, new: Place) -> tuple[jax.Array, jax.Array]:
        """The number of consecutive steps without change of value and parameters."""
        old, values, steps = run.at, run.still_values, run.still_steps
        if self._tol.value is not OFF:
            size = jnp.maximum(jnp.abs(old.value), jnp.abs(new.value))
            limit = self._tol.value * size
            if self._searches:
                is_still = run.lowest - new.value <= limit
                is_still = is_still | self._is_rounding(run)
            else:
                is_still = jnp.abs(new.value - old.value) <= limit
            values = in_a_row(is_still, values)
        if self._tol.step is not OFF:
            moves = each(jnp.subtract, new.xs, old.xs)
            change, size = (largest(xs, self._dtype) for xs in (moves, new.xs))
            steps = in_a_row(change <= self._tol.step * size, steps)
        return values, steps

    def _is_rounding(self, run: Run) -> jax.Array:
        """Whether the value is within the rounding error due to the parameters."""
        at, norm = run.at, run.at.norm
        if self._inputs.box is not None:
            norm = largest(at.grads, self._dtype) * run.unit
        return jnp.abs(at.value) <= 8 * jnp.finfo(self._dtype).eps * norm * at.size

    def _start(self) -> Place:
        xs = self._inputs.moving
        # Evaluate on the given arrays, which need not be sliced out of a vector.
        value, grads = self._held(*jax.value_and_grad(self._value)(xs))
        if self._pack:
            # JAX's gradient for a complex array is the conjugate of the gradient for
            # its parts.
            xs, grads = self._pack.pack(xs), self._pack.pack(conj(grads))
        return self._place(xs, value, grads)

    def _value_and_grads(self, xs: list) -> tuple[jax.Array, list]:
        found = jax.value_and_grad(lambda xs: self._value(self.unpack(xs)))(xs)
        return self._held(*found)

    def _held(self, value: jax.Array, grads: list) -> tuple[jax.Array, list]:
        # XLA would fuse the sum of many arrays into each kernel that reads it.
        is_long = len(self._inputs.moving) >= 32
        return hold(value) if is_long else value, grads

    def _place(self, xs, value, grads, unit=None) -> Place:
        """The point with max |P(x - g) - x|, which is max |g| without bounds."""
        is_split = self._pack and self._pack.has_complex
        sizes = self.unpack(grads) if is_split else grads
        if self._inputs.box is not None:
            whole = grads if unit is None else [g * unit.astype(g.dtype) for g in grads]
            rows = zip(xs, whole, *self._inputs.box, strict=True)
            sizes = [jnp.clip(-g, l - x, u - x) for x, g, l, u in rows]
        norm, size = (largest(x, self._dtype) for x in (sizes, xs))
        if unit is not None and self._inputs.box is None:
            norm = norm * unit
        return Place(xs, value.astype(self._dtype), grads, norm, size)

    def _value_fn(self, params: Any) -> jax.Array:
        return self._value(self._setup.frame.pick(params))

    def _value(self, xs: list) -> jax.Array:
        """The value at the moving arrays in the caller's form."""
        # `asarray`, because a constant is not traced.
        return jnp.asarray(self._both(xs, *self._data)[0]).astype(self._dtype)

    def _new_state(self, at: Place, unit: Any) -> Any:
        if self._pack:
            return quasi_newton.begin(at.value / unit, at.grads, at.size)
        return self._tx.init(self._setup.frame.params(at.xs))


def _over(unit: Any, value: jax.Array, grads: list) -> tuple[jax.Array, list]:
    """A value and its gradients divided by a power of two, if given."""
    if unit is None:
        return value, grads
    return value / unit, [x / unit.astype(rx.real_dtype(x.dtype)) for x in grads]


def _rescaled(run: Run) -> Run:
    """The run in the unit of one that starts here, if its memory is to be cleared."""
    unit = unit_of(run.at.value, run.at.norm)
    ratio = run.unit / unit
    is_new = run.is_stuck & (ratio > 0) & (ratio < jnp.inf)
    unit, ratio = jnp.where(is_new, unit, run.unit), hold(jnp.where(is_new, ratio, 1))
    grads = [g * ratio.astype(g.dtype) for g in run.at.grads]
    # What was known may have underflowed in the old unit.
    flattest = jnp.where(ratio == 1, run.state.flattest, 0)
    state = run.state._replace(flattest=flattest)
    return run._replace(at=run.at._replace(grads=grads), state=state, unit=unit)


def counted(run: Run, state: Any, evaluations: Any, is_made: Any = True) -> Run:
    return run._replace(
        state=state,
        steps=run.steps + jnp.asarray(is_made, jnp.int32),
        tried=run.tried + 1,
        evaluations=run.evaluations + jnp.asarray(evaluations, jnp.int32),
    )


def _is_finite(at: Place) -> jax.Array:
    return jnp.isfinite(at.value) & jnp.isfinite(at.norm)
