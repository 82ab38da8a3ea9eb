"""Roots of the systems of Moré, Garbow and Hillstrom, beside SciPy's hybr.

A system is solved if no |f| element is above 1e-6.
"""

import statistics
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize

import stepax
from tests.problems.systems import collect

from .peers import MOST
from .table import Table, goal, head, line


def ours(method):
    def run(system):
        x0 = jnp.asarray(system.x0, float)
        found = stepax.solve.root(system.fun, x0, method=method, max_steps=MOST)
        return np.asarray(found.params), int(found.evaluations), found.status.name

    return run


def hybr(system):
    fun, jacobian = jax.jit(system.fun), jax.jit(jax.jacfwd(system.fun))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = optimize.root(
            lambda x: np.asarray(fun(jnp.asarray(x))),
            system.x0,
            jac=lambda x: np.asarray(jacobian(jnp.asarray(x))),
        )
    return found.x, found.nfev, "success" if found.success else "failure"


class Row(NamedTuple):
    """The largest residual, evaluations, and what the solver says."""

    size: float
    evaluations: int
    status: str

    @property
    def solved(self) -> bool:
        return self.size <= 1e-6

    @property
    def false(self) -> bool:
        return self.status.startswith("CONVERGED") and not self.solved


METHODS = "newton", "broyden", "krylov"
RUNS = {name: ours(name) for name in METHODS} | {"SciPy hybr": hybr}


def run() -> Iterator[tuple[str, list[Row]]]:
    for system in collect():
        row = []
        for solve in RUNS.values():
            x, evaluations, status = solve(system)
            size = float(np.max(np.abs(system.fun(jnp.asarray(x, float)))))
            row.append(Row(size, evaluations, status))
        yield system.name, row


def measure() -> dict[str, Table]:
    top = head(
        "system", *(x for name in RUNS for x in (f"{name}: residual", "evaluations"))
    )
    rows, cells = [], []
    for name, row in run():
        rows.append(row)
        pairs = ((f"{x.size:.0e}", x.evaluations) for x in row)
        cells.append(line(name, *(y for pair in pairs for y in pair)))
    columns = dict(zip(RUNS, zip(*rows, strict=True), strict=True))
    counts = {name: sum(x.solved for x in found) for name, found in columns.items()}
    peer = columns["SciPy hybr"]
    pairs = [*zip(columns["newton"], peer, strict=True)]
    ratios = [a.evaluations / b.evaluations for a, b in pairs if a.solved and b.solved]
    lost = sum(b.solved and not a.solved for a, b in pairs)
    wrong = sum(x.false for name in METHODS for x in columns[name])
    got = ", ".join(f"{name} {n}" for name, n in counts.items())
    goals = [
        goal(
            f"`root`: systems solved, of {len(rows)}",
            "all that hybr solves",
            f"{got}; lost by newton: {lost}; wrongly called solved: {wrong}",
        ),
        goal(
            "evaluations of newton by those of hybr, median",
            "reported",
            f"{statistics.median(ratios):.2f}",
        ),
    ]
    return {"systems": Table(top, cells, goals)}
