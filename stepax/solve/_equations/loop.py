"""The loop: take steps of a method until a stopping rule of that method holds.

A method sees a function from one real vector to another, and nothing of trees.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..._linesearch.line import largest, search_dtype
from .._minimize.bundle import Solver, empty_history, record
from .._minimize.frame import open_closure
from .._minimize.loop import Inputs, Setup
from .._minimize.pack import Flat
from .._minimize.result import Code, Result
from .._minimize.watch import OFF


class Place(NamedTuple):
    """A vector of parameters with its residuals.

    numbers: the value and the norm, and what else a method knows of the place; as a
        vector they take one function of the compiled program.
    """

    x: jax.Array
    r: jax.Array
    numbers: jax.Array

    @property
    def value(self) -> jax.Array:
        """What the method lowers."""
        return self.numbers[0]

    @property
    def norm(self) -> jax.Array:
        """The largest |g| element, or what else tells how far the solution is."""
        return self.numbers[1]


class Problem(NamedTuple):
    """What a method knows.

    fun: maps the vector of parameters to that of the residuals.
    rows, columns: the sizes of both.
    box: the vectors of the lower and upper bounds, or `None`.
    tol: the tolerances, a `Tolerances`.
    eps: the largest rounding error of the parameters.
    number: a further number of the method.
    """

    fun: Callable[[jax.Array], jax.Array]
    rows: int
    columns: int
    box: Any
    tol: Any
    eps: float
    number: Any

    def limit(self, first: jax.Array) -> jax.Array:
        """The largest residual of a root, by default relative to that at the start."""
        if self.tol.gradient is not None:
            return jnp.asarray(self.tol.gradient, first.dtype)
        return max(8 * self.eps, 2.0**-26) * jnp.minimum(first, 1)

    @property
    def short(self) -> Any:
        return None if self.tol.step is OFF else self.tol.step

    def place(self, x: jax.Array, r: jax.Array) -> "Place":
        """A place whose value is |r|² / 2."""
        return Place(x, r, jnp.stack([0.5 * jnp.sum(r * r), largest([r], r.dtype)]))


# The next place and state, the number of evaluations, and the code, which is `RUNNING`
# or says why the run ends.
Step = tuple[Place, Any, Any, jax.Array]


class Stepper:
    """A method for one problem; numbers: how many it knows of a place."""

    numbers = 2

    def __init__(self, problem: Problem):
        self._problem = problem

    def begin(self, x: jax.Array) -> Any:
        """The state before the start is evaluated."""
        raise NotImplementedError

    def step(self, at: Place, state: Any, steps: jax.Array) -> Step:
        """A step, the first of which evaluates the start, with an infinite value.

        steps: how many have been taken, -1 at the start.
        """
        raise NotImplementedError

    def factor(self, state: Any) -> Any:
        """That of the Jacobian, if the last state has it."""
        return None

    def _code(self, at: Place, new: Place, code: Any, limit: Any, size: Any) -> Any:
        """`code`, unless the residuals or the step are small, or not finite.

        limit: of residuals; size: of the parameters.
        """
        if self._problem.short is not None:
            move = jnp.max(jnp.abs(new.x - at.x))
            is_short = (move > 0) & (move <= self._problem.short * size)
            code = jnp.where(is_short, Code.STEP, code)
        code = jnp.where(new.norm <= limit, Code.RESIDUAL, code)
        return jnp.where(jnp.isfinite(new.value), code, Code.NOT_FINITE)


class Run(NamedTuple):
    """The state of a run; `history` holds the values and norms of its steps."""

    at: Place
    state: Any
    steps: jax.Array
    evaluations: jax.Array
    code: jax.Array
    history: Any


class Iteration(Solver):
    """The parts of the loop, for one function and its inputs."""

    def __init__(self, setup: Setup, both: Callable, inputs: Inputs):
        super().__init__(setup, both, inputs)
        # Trace once here, rather than at each place of evaluation.
        self._both, more = open_closure(both, inputs.moving, inputs.data)
        self._data = inputs.data, more
        out, _ = jax.eval_shape(self._both, inputs.moving, *self._data)
        leaves, self._treedef = jax.tree.flatten(out)
        self._dtype = dtype = search_dtype([*inputs.moving, *leaves])
        self._xs, self._rs = Flat(inputs.moving, dtype), Flat(leaves, dtype)
        (tol, number), box = inputs.tol, self._xs.sides(inputs.box)
        sizes = self._rs.size, self._xs.size
        problem = Problem(self._residuals, *sizes, box, tol, self._eps, number)
        kind, *options = setup.method
        self._method = kind(problem, *options)

    def run(self) -> Result:
        return self.finish(self.advance(self._first(), self._inputs.max_steps))

    def begin(self) -> Run:
        return self.advance(self._first(), jnp.zeros([], jnp.int32))

    def _first(self) -> Run:
        """The run before its start, so that the function occurs once in a program."""
        x = self._xs.join(self._inputs.moving)
        numbers = jnp.array([jnp.inf] + [0.0] * (self._method.numbers - 1), x.dtype)
        at, zero = Place(x, jnp.zeros(self._rs.size, x.dtype), numbers), jnp.int32(0)
        state, code = self._method.begin(x), zero + Code.RUNNING
        history = empty_history(self._setup, x.dtype)
        return Run(at, state, zero - 1, zero, code, history)

    def finish(self, run: Run) -> Result:
        """The result; its value is what the method lowers."""
        residuals = self._treedef.unflatten(self._rs.split(run.at.r))
        factor = self._method.factor(run.state)
        xs = self.unpack(run.at.x)
        return self._result(run, xs, residuals=residuals, factor=factor)

    def unpack(self, x: jax.Array) -> list:
        return self._xs.split(x)

    def _residuals(self, x: jax.Array) -> jax.Array:
        out, _ = self._both(self.unpack(x), *self._data)
        return self._rs.join(jax.tree.leaves(out))

    def _step(self, run: Run) -> Run:
        at, state, count, code = self._method.step(run.at, run.state, run.steps)
        evaluations = run.evaluations + jnp.asarray(count, jnp.int32)
        return record(Run(at, state, run.steps + 1, evaluations, code, run.history))
