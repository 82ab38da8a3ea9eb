"""The linear assignment problem: pair rows with columns at the least total cost.

The shortest augmenting path algorithm of Crouse, 2016, On implementing 2D rectangular
assignment algorithms (DOI:10.1109/TAES.2016.140952), which goes back to Kuhn's
Hungarian method and to Jonker and Volgenant, 1987 (DOI:10.1007/BF02278710).

Differences from Optax: both names refer to one algorithm; integers are compared
exactly; infinite costs never cause an endless loop; the total of the chosen costs is
differentiable.
"""

import functools as ft
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ._engine.arrays.numerics import upcast
from ._engine.functions.calls import explain_misuse
from ._names import attributes


__all__ = [
    "base_hungarian_algorithm", "hungarian_algorithm",
]  # fmt: skip

if not TYPE_CHECKING:
    __dir__, __getattr__ = attributes(__name__)


@explain_misuse
def hungarian_algorithm(cost_matrix: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """Pair rows with columns, each used at most once, at the least total cost.

        minimize Σ C[i, j] over min(N, M) pairs (i, j)

    cost_matrix: C, of shape (N, M).  A pair with infinite or NaN cost is chosen only if
        unavoidable.  Costs are compared in float32 or wider; integers are exact if N
        times their range can be represented.

    Returns the rows i, in ascending order, and the columns j, of shape (min(N, M),).
    Takes at most min(N, M)² max(N, M) operations.  Raises ValueError unless
    `cost_matrix` is a real matrix.
    """
    costs = jnp.asarray(cost_matrix)
    if costs.ndim != 2:
        raise ValueError(
            f"`cost_matrix` has shape {costs.shape}, expected rows and columns; use "
            "`jax.vmap` for several matrices"
        )
    if jnp.iscomplexobj(costs):
        raise ValueError("`cost_matrix` is complex, expected real numbers")
    if not costs.size:
        return jnp.zeros([0], jnp.int32), jnp.zeros([0], jnp.int32)
    costs = jax.lax.stop_gradient(costs)  # indices have no derivative
    is_tall = costs.shape[0] > costs.shape[1]
    columns = _assign(costs.T if is_tall else costs)
    rows = jnp.arange(len(columns), dtype=columns.dtype)
    if not is_tall:
        return rows, columns
    order = jnp.argsort(columns)
    return columns[order], rows[order]


@explain_misuse
def base_hungarian_algorithm(cost_matrix: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """An alias of `hungarian_algorithm`, its other name in Optax.

    cost_matrix: the costs, of shape (N, M).

    Returns the rows, in ascending order, and the columns, of shape (min(N, M),).
    Raises ValueError unless `cost_matrix` is a real matrix.
    """
    return hungarian_algorithm(cost_matrix)


class _Dual(NamedTuple):
    """u, v: prices of rows and columns.  row, column: partners, -1 if unassigned."""

    u: jax.Array
    v: jax.Array
    row: jax.Array
    column: jax.Array


class _Search(NamedTuple):
    """The columns reached in the search from a row to a free column.

    i: the current row.  j: the last column.  length: length of the shortest path to j.
    lengths, before: length of the shortest path to each column, and the row before it.
    """

    i: jax.Array
    j: jax.Array
    length: jax.Array
    lengths: jax.Array
    before: jax.Array
    is_reached: jax.Array


@jax.jit
def _assign(costs):
    """The column of each row, for at least as many columns as rows."""
    n, m = costs.shape
    costs = _finite(costs)
    none = ft.partial(jnp.full, fill_value=-1, dtype=jnp.int32)
    zeros = ft.partial(jnp.zeros, dtype=costs.dtype)
    start = _Dual(zeros(n), zeros(m), none(m), none(n))
    return jax.lax.fori_loop(
        0, n, lambda i, dual: _add_row(costs, jnp.asarray(i, jnp.int32), dual), start
    ).column


def _finite(costs):
    """Costs with infinities replaced by a value that outweighs all others."""
    if not jnp.issubdtype(costs.dtype, jnp.inexact):
        # Prices may be negative, so that unsigned integers need a wider signed dtype.
        is_short = costs.dtype.itemsize < 4
        is_signed = jnp.issubdtype(costs.dtype, jnp.signedinteger)
        if is_short or is_signed:
            return costs.astype(jnp.int32) if is_short else costs
    costs = upcast(costs)
    is_finite = jnp.isfinite(costs)
    lowest = jnp.min(costs, initial=jnp.inf, where=is_finite)
    highest = jnp.max(costs, initial=-jnp.inf, where=is_finite)
    lowest, highest = (jnp.where(jnp.isfinite(x), x, 0) for x in (lowest, highest))
    far = (highest - lowest + 1) * (len(costs) + 1)
    beyond = jnp.where(costs == -jnp.inf, lowest - far, highest + far)
    return jnp.where(is_finite, costs, beyond)


def _add_row(costs, i, dual):
    """Assign a column to row i, along the shortest path to a free column."""
    m = costs.shape[1]
    start = _Search(
        i,
        jnp.asarray(-1, jnp.int32),
        jnp.zeros([], costs.dtype),
        jnp.full([m], _top(costs), costs.dtype),
        jnp.full([m], -1, jnp.int32),
        jnp.zeros([m], bool),
    )
    reach = ft.partial(_reach, costs, dual)
    found = jax.lax.while_loop(lambda at: at.i >= 0, reach, start)
    left = jnp.where(found.is_reached, found.length - found.lengths, 0)
    # Row i has no column yet, and the last column no row: index -1 is dropped.
    at = jnp.where(dual.row < 0, len(costs), dual.row)
    u = dual.u.at[at].add(left, mode="drop").at[i].add(found.length)
    return _augment(i, found, dual._replace(u=u, v=dual.v - left))


def _top(costs):
    """An upper bound of all path lengths."""
    is_integer = jnp.issubdtype(costs.dtype, jnp.integer)
    return jnp.iinfo(costs.dtype).max if is_integer else jnp.inf


def _reach(costs, dual, at):
    """One step of Dijkstra's algorithm: reach the nearest unreached column."""
    through = at.length + (costs[at.i] - dual.u[at.i] - dual.v)
    is_nearer = ~at.is_reached & (through < at.lengths)
    lengths = jnp.where(is_nearer, through, at.lengths)
    # Costs are finite, so that some unreached column is below the top.
    free = jnp.where(at.is_reached, _top(costs), lengths)
    j = jnp.argmin(free).astype(jnp.int32)
    return _Search(
        i=dual.row[j],
        j=j,
        length=lengths[j],
        lengths=lengths,
        before=jnp.where(is_nearer, at.i, at.before),
        is_reached=at.is_reached.at[j].set(True),
    )


def _augment(i, found, dual):
    """Swap the pairs along the path, from its end to its start."""

    def swap(carry):
        j, _, row, column = carry
        i = found.before[j]
        return column[i], i, row.at[j].set(i), column.at[i].set(j)

    start = found.j, jnp.asarray(-1, jnp.int32), dual.row, dual.column
    _, _, row, column = jax.lax.while_loop(lambda carry: carry[1] != i, swap, start)
    return dual._replace(row=row, column=column)
