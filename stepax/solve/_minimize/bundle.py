"""The loop of all solvers, which carries its many scalars as a few short vectors.

XLA compiles, copies and calls each scalar that a loop carries as a separate function,
which takes longer than the arithmetic.  Bundled into vectors, a loop over 25 scalars
compiles in five sixths of the time, and runs twice as fast.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from ..._linesearch.line import search_dtype
from .result import Code, History, Result


T = TypeVar("T")

# Evaluations that a run may use beyond those of its steps.
SPARE = 15_000
# XLA splits the computation of longer vectors into scalars and concatenates them.
_LONGEST = 8


def while_loop(goes_on: Callable[[T], Any], step: Callable[[T], T], first: T) -> T:
    """`jax.lax.while_loop` with real scalars and flags bundled into vectors.

    The condition is computed in the body, since a separate function would have to
    unpack all bundles.
    """
    leaves, treedef = jax.tree.flatten(first)
    leaves = [jnp.asarray(goes_on(first)), *leaves]
    dtypes = [jnp.result_type(x) for x in leaves]
    bundles = _bundles(leaves)
    rest = sorted(set(range(len(leaves))) - {i for _, at in bundles for i in at})

    def tie(xs):
        rows = [[_carried(xs[i], dtype) for i in at] for dtype, at in bundles]
        return list(map(jnp.stack, rows)), [xs[i] for i in rest]

    def untie(tied):
        vectors, others = tied
        found = dict(zip(rest, others, strict=True))
        for (_, at), x in zip(bundles, vectors, strict=True):
            for i, number in zip(at, jax.lax.split(x, [1] * len(at)), strict=True):
                found[i] = _carried(number.reshape(()), dtypes[i])
        return treedef.unflatten([found[i] for i in range(1, len(leaves))])

    def advance(tied):
        new = step(untie(tied))
        return tie([jnp.asarray(goes_on(new)), *jax.tree.leaves(new)])

    where = next(k for k, (_, at) in enumerate(bundles) if at[0] == 0)
    end = jax.lax.while_loop(lambda t: t[0][where][0] != 0, advance, tie(leaves))
    return untie(end)


def _bundles(leaves: list) -> list[tuple[Any, list[int]]]:
    """Pairs of a dtype and the indices of the scalars bundled in it."""
    known = jnp.bool_, jnp.int32, jnp.float32, jnp.float64
    kinds = [jnp.shape(x) == () and jnp.result_type(x) in known for x in leaves]
    at = [i for i, is_bundled in enumerate(kinds) if is_bundled]
    is_wide = any(leaves[i].dtype == jnp.float64 for i in at)
    dtype = jnp.dtype("float64" if is_wide else "int32")
    return [(dtype, at[k : k + _LONGEST]) for k in range(0, len(at), _LONGEST)]


def _carried(x: jax.Array, dtype: Any) -> jax.Array:
    """A scalar in another dtype, from which it returns with the same bits."""
    is_short = jnp.float32 in (x.dtype, dtype)
    if is_short and jnp.int32 in (x.dtype, dtype):
        return jax.lax.bitcast_convert_type(x, dtype)
    return x.astype(dtype)


class Solver:
    """What all loops have in common, for one function and its inputs.

    A subclass has `begin`, `_step`, and `unpack`, which returns the moving arrays in
    the caller's form.  Its runs have the fields `at`, with `xs`, `value` and `norm`,
    `steps`, `evaluations`, `code` and `history`.

    EACH: the evaluations of a step without any search.
    """

    EACH = 1
    begin: Callable
    unpack: Callable
    _step: Callable

    def __init__(self, setup: Any, both: Callable, inputs: Any):
        """both: maps lists of arrays, moving and other, to the value and the aux."""
        self._setup, self._both, self._inputs = setup, both, inputs
        self._data: tuple = (inputs.data,)
        self._dtype = search_dtype(inputs.moving)
        self._eps = max(float(jnp.finfo(x.dtype).eps) for x in inputs.moving)

    def run(self) -> Any:
        return self.finish(self.advance(self.begin(), self._inputs.max_steps))

    def advance(self, run: Any, limit: jax.Array) -> Any:
        """Take steps until the end, or until `limit`."""
        return while_loop(lambda r: self._goes_on(r, limit), self._step, run)

    def finish(self, run: Any) -> Any:
        """The result; its `params` is the list of moving arrays."""
        return self._result(run, self.unpack(run.at.xs))

    def _aux(self, xs: list) -> Any:
        return self._both(xs, *self._data)[1]

    def _goes_on(self, run: Any, limit: jax.Array) -> jax.Array:
        may = run.evaluations - SPARE < self.EACH * self._inputs.max_steps
        return (run.code == Code.RUNNING) & (run.steps < limit) & may

    def _result(self, run: Any, xs: list, **more: Any) -> Result:
        """The result at a list of moving arrays; more: further fields of it."""
        at, aux, evaluations = run.at, None, run.evaluations
        if self._setup.has_aux:
            aux, evaluations = self._aux(xs), evaluations + 1
        code = jnp.where(run.code == Code.RUNNING, Code.LIMIT, run.code)
        numbers = at.value, at.norm, run.steps, evaluations, code
        return Result(xs, *numbers, aux, run.history, **more)


def empty_history(setup: Any, dtype: Any) -> History | None:
    if setup.length is None:
        return None
    empty = jnp.full(setup.length + 1, jnp.nan, dtype)
    return History(empty, empty)


def record(run: Any) -> Any:
    if run.history is None:
        return run
    pairs = zip(run.history, (run.at.value, run.at.norm), strict=True)
    columns = [column.at[run.steps].set(x, mode="drop") for column, x in pairs]
    return run._replace(history=History(*columns))
