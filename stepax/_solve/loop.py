"""The loop: take steps of a method until a stopping rule of that method holds.

A method sees a function from one real vector to another, and nothing of trees.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._engine.base import is_array, is_none
from .._engine.trees import errors
from .._linesearch.line import largest, search_dtype
from .._minimize.bundle import while_loop
from .._minimize.closure import open_closure
from .._minimize.frame import Frame
from .._minimize.loop import SPARE, Inputs
from .._minimize.stop import OFF
from .flat import Flat


# Codes that `MinimizeStatus` and `SolveStatus` have in common.
LIMIT, NOT_FINITE, RUNNING = map(np.int32, (3, 5, 7))
# Codes of `SolveStatus`.
CONVERGED, PRECISE, STUCK, NO_SIGN_CHANGE = map(np.int32, (0, 1, 4, 8))


class Place(NamedTuple):
    """A vector of parameters with its residuals.

    value: what the method lowers.
    norm: the largest |g| element, or what else tells how far the solution is.
    """

    x: jax.Array
    r: jax.Array
    value: jax.Array
    norm: jax.Array


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
        """The tolerance for the length of a step, `None` if it is off."""
        return None if self.tol.step is OFF else self.tol.step

    def place(self, x: jax.Array, r: jax.Array) -> "Place":
        """A place whose value is |r|² / 2."""
        return Place(x, r, 0.5 * jnp.sum(r * r), largest([r], r.dtype))


class Stepper:
    """A method for one problem.  A code is `RUNNING`, or says why the run ends."""

    def begin(self, x: jax.Array) -> Any:
        """The state before the start is evaluated, which the first step does."""
        raise NotImplementedError

    def step(
        self, at: Place, state: Any, steps: jax.Array
    ) -> tuple[Place, Any, Any, jax.Array]:
        """The next place and state, the number of evaluations, and the code.

        steps: how many have been taken, -1 at the start, whose value is infinite.
        """
        raise NotImplementedError

    def more(self, state: Any) -> Any:
        """What of the last state belongs to the result."""
        return None


class Setup(NamedTuple):
    """The static configuration of a program, besides the function and the shapes.

    method: makes a `Stepper` for a problem, and has a hash.
    name: what the user calls the function.
    kind: "residuals" for any tree, "root" for one like the parameters, that is to be
        0, "fixed_point" for one that is to be equal to them.
    """

    frame: Frame
    args_frame: Frame
    method: Any
    has_aux: bool
    length: int | None
    name: str
    kind: str


class Run(NamedTuple):
    """The state of a run; `history` holds the values and norms of its steps."""

    at: Place
    state: Any
    steps: jax.Array
    evaluations: jax.Array
    code: jax.Array
    history: Any


class Solved(NamedTuple):
    """The end of a run, with lists of arrays; `more` is that of the method."""

    params: list
    residuals: Any
    value: jax.Array
    norm: jax.Array
    steps: jax.Array
    evaluations: jax.Array
    code: jax.Array
    aux: Any
    history: Any
    more: Any


class Iteration:
    """The parts of the loop, for one function and its inputs."""

    def __init__(self, setup: Setup, both: Callable, inputs: Inputs):
        """both: as made by `bind`."""
        self._setup, self._inputs = setup, inputs
        # Trace once here, rather than at each place of evaluation.
        self._both, more = open_closure(both, inputs.moving, inputs.data)
        self._data = inputs.data, more
        out, _ = jax.eval_shape(self._both, inputs.moving, *self._data)
        leaves, self._treedef = jax.tree.flatten(out)
        dtype = search_dtype([*inputs.moving, *leaves])
        self._xs, self._rs = Flat(inputs.moving, dtype), Flat(leaves, dtype)
        eps = max(float(jnp.finfo(x.dtype).eps) for x in inputs.moving)
        like = lambda side, x: jnp.broadcast_to(side, x.shape)
        box = inputs.box and tuple(
            self._xs.join(
                [like(*pair) for pair in zip(sides, inputs.moving, strict=True)]
            )
            for sides in inputs.box
        )
        tol, number = inputs.tol
        sizes = self._rs.size, self._xs.size
        problem = Problem(self._residuals, *sizes, box, tol, eps, number)
        self._method = setup.method(problem)

    def run(self) -> Solved:
        """The whole run."""
        return self.finish(self.advance(self._first(), self._inputs.max_steps))

    def begin(self) -> Run:
        """The run at its start."""
        return self.advance(self._first(), jnp.zeros([], jnp.int32))

    def _first(self) -> Run:
        """The run before its start, so that the function occurs once in a program."""
        x = self._xs.join(self._inputs.moving)
        far, zero = jnp.full([], jnp.inf, x.dtype), jnp.zeros([], jnp.int32)
        at = Place(x, jnp.zeros(self._rs.size, x.dtype), far, far)
        history = None
        if self._setup.length is not None:
            history = (jnp.full(self._setup.length + 1, jnp.nan, x.dtype),) * 2
        return Run(at, self._method.begin(x), zero - 1, zero, zero + RUNNING, history)

    def advance(self, run: Run, limit: jax.Array) -> Run:
        """Take steps until the end, or until `limit`."""
        goes_on = lambda r: (
            (r.code == RUNNING)
            & (r.steps < limit)
            & (r.evaluations - SPARE < self._inputs.max_steps)
        )
        return while_loop(goes_on, self._step, run)

    def finish(self, run: Run) -> Solved:
        xs, aux, evaluations = self.unpack(run.at.x), None, run.evaluations
        if self._setup.has_aux:
            aux, evaluations = self._both(xs, *self._data)[1], evaluations + 1
        code = jnp.where(run.code == RUNNING, LIMIT, run.code)
        residuals = self._treedef.unflatten(self._rs.split(run.at.r))
        numbers = run.at.value, run.at.norm, run.steps, evaluations, code
        more = self._method.more(run.state)
        return Solved(xs, residuals, *numbers, aux, run.history, more)

    def unpack(self, x: jax.Array) -> list:
        """The moving arrays in a vector."""
        return self._xs.split(x)

    def _residuals(self, x: jax.Array) -> jax.Array:
        return self._rs.join(
            jax.tree.leaves(self._both(self.unpack(x), *self._data)[0])
        )

    def _step(self, run: Run) -> Run:
        at, state, count, code = self._method.step(run.at, run.state, run.steps)
        steps = run.steps + 1
        history = run.history
        if history is not None:
            pairs = zip(history, (at.value, at.norm), strict=True)
            history = tuple(xs.at[steps].set(x, mode="drop") for xs, x in pairs)
        evaluations = run.evaluations + jnp.asarray(count, jnp.int32)
        return Run(at, state, steps, evaluations, code, history)


def bind(setup: Setup, get: Callable) -> Callable:
    """The function that `get` returns, as a function of lists of arrays.

    It returns the residuals, a tree, or a list like the moving arrays if they must have
    the structure of the parameters; and the auxiliary output.
    """

    def both(moving, data):
        staying, arrays = data
        params = setup.frame.whole(moving, staying)
        out = get()(params, *setup.args_frame.whole((), arrays))
        if setup.has_aux:
            out, aux = _pair(out, setup.name)
        else:
            aux = None
        if setup.kind == "residuals":
            return _arrays(out, setup.name), aux
        found = _like(out, moving, setup.frame, setup.name)
        if setup.kind == "fixed_point":
            found = [y - x.astype(y.dtype) for x, y in zip(moving, found, strict=True)]
        return found, aux

    return both


def _pair(out: Any, name: str) -> tuple:
    if not (isinstance(out, tuple) and len(out) == 2):
        raise TypeError(
            f"`{name}` returns {errors.describe(out)}, expected a pair of its output "
            "and auxiliary output, because `has_aux` is `True`"
        )
    return out


def _arrays(out: Any, name: str) -> Any:
    """A tree of floating-point arrays, or an error that names the path."""
    leaves = jax.tree.leaves_with_path(out, is_leaf=is_none)
    for path, x in leaves:
        where = f"at {jax.tree_util.keystr(path)} " if path else ""
        if not is_array(x):
            raise TypeError(
                f"`{name}` returns {where}{errors.describe(x)}, expected an array; to "
                "return more, use `has_aux=True`"
            )
        if not jnp.issubdtype(jnp.result_type(x), jnp.inexact):
            raise TypeError(
                f"`{name}` returns {where}an array of {jnp.result_type(x)}, expected "
                "floating-point numbers"
            )
    if sum(jnp.size(x) for _, x in leaves) == 0:
        raise ValueError(f"`{name}` returns {errors.describe(out)} without any number")
    return jax.tree.map(jnp.asarray, out)


def _like(out: Any, moving: list, frame: Frame, name: str) -> list:
    """The arrays of a tree that must be like the parameters."""
    try:
        found = frame.pick(out)
    except (ValueError, TypeError):
        raise ValueError(
            f"`{name}` returns {errors.describe(out)}, expected a tree with the "
            f"structure of its parameters, {frame.treedef}"
        ) from None
    found = _arrays(found, name)
    for i, (x, y) in enumerate(zip(found, moving, strict=True)):
        if x.shape != y.shape or jnp.iscomplexobj(x) != jnp.iscomplexobj(y):
            raise ValueError(
                f"`{name}` returns an array of shape {x.shape} and dtype {x.dtype} for "
                f"leaf {frame.live[i]} of its parameters, which has shape {y.shape} "
                f"and dtype {y.dtype}; expected as many equations as unknowns; for "
                "more equations use `least_squares`"
            )
    return found
