"""Regressions of NIST from both starts, and problems of Moré, Garbow and Hillstrom.

A regression is solved if every parameter has four digits of those certified; a problem
of Moré, Garbow and Hillstrom if the sum of squares is within 1e-6 of the minimum,
relative to it where it is above 1.  All use their default tolerances.
"""

import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tests.problems import more_garbow_hillstrom as few, strd
from tests.problems.systems import stacked

from .peers import MOST, SOLVERS
from .table import Table, goal, head, line


REGRESSIONS = 54


class Job(NamedTuple):
    """good: the digits of a solution, of which `enough` solve the problem."""

    name: str
    residuals: Callable
    start: np.ndarray
    good: Callable[[Any], float]
    enough: float


class Row(NamedTuple):
    digits: float
    evaluations: int
    solved: bool


def digits(x: np.ndarray, certified: np.ndarray) -> float:
    """The number of right digits of the worst parameter, at most 11."""
    error = np.max(np.abs(x - certified) / np.abs(certified))
    return 0.0 if not error < 1 else min(11.0, -np.log10(max(error, 1e-11)))


def excess(x: Any, residuals: Callable, minimum: float) -> float:
    """The digits of the sum of squares, at most 16."""
    squares = float(jnp.sum(residuals(jnp.asarray(x, float)) ** 2))
    above = (squares - minimum) / max(1.0, minimum)
    return -float(np.log10(max(above, 1e-16))) if above == above else -1.0


def regressions() -> list[Job]:
    return [
        Job(
            f"{fit.name}, start {i + 1}",
            fit.residuals,
            start,
            lambda x, fit=fit: digits(x, fit.certified),
            4.0,
        )
        for fit in strd.collect()
        for i, start in enumerate(fit.starts)
    ]


def sums() -> list[Job]:
    found = []
    for _, fun, start, minimum in few.TABLE:
        residuals = stacked(fun)
        good = lambda x, r=residuals, minimum=minimum: excess(x, r, minimum)
        name = f"{fun.__name__.replace('_', ' ')} {len(start)}"
        found.append(Job(name, residuals, np.array(start, float), good, 6.0))
    return found


def run() -> tuple[list[str], list[list[str]], dict[str, list[Row]]]:
    """The cells of a table, and the results of each solver."""
    results: dict[str, list[Row]] = {name: [] for name in SOLVERS}
    top = head(
        "problem", *(x for name in SOLVERS for x in (f"{name}: digits", "evaluations"))
    )
    cells = []
    for job in [*regressions(), *sums()]:
        for name, solver in SOLVERS.items():
            x, evaluations = solver(job.residuals, job.start)
            good = job.good(x)
            results[name].append(Row(good, evaluations, good >= job.enough))
        now = [results[name][-1] for name in SOLVERS]
        count = lambda n: n if n < MOST else "all"
        cells.append(
            line(
                job.name,
                *(y for x in now for y in (f"{x.digits:.1f}", count(x.evaluations))),
            )
        )
    return top, cells, results


def ratio(results: dict[str, list[Row]], name: str) -> str:
    """The median ratio of evaluations where both Stepax and another solve."""
    pairs = zip(results["Stepax"], results[name], strict=True)
    both = [a.evaluations / b.evaluations for a, b in pairs if a.solved and b.solved]
    return f"{statistics.median(both):.3f}"


def missed(results: dict[str, list[Row]], good: Callable[[Row], bool]) -> int:
    """How many problems another solver has, and Stepax not."""
    peers = [rows for name, rows in results.items() if name != "Stepax"]
    return sum(
        not good(own) and any(map(good, others))
        for own, *others in zip(results["Stepax"], *peers, strict=True)
    )


def summary(results: dict[str, list[Row]]) -> Table:
    """A row for each solver."""
    top = head(
        "solver",
        "solved of 76",
        "six digits, of 54 regressions",
        "evaluations of Stepax by those, median",
    )
    cells = [
        line(
            name,
            sum(x.solved for x in rows),
            sum(x.digits >= 6 for x in rows[:REGRESSIONS]),
            ratio(results, name),
        )
        for name, rows in results.items()
    ]
    return Table(top, cells, [])


def measure() -> dict[str, Table]:
    top, cells, results = run()
    said = summary(results)
    counts = {row[0]: row[1] for row in said.rows}
    six = {row[0]: row[2] for row in said.rows}
    others = lambda row: ", ".join(f"{k} {n}" for k, n in row.items() if k != "Stepax")
    first = {k: rows[:REGRESSIONS] for k, rows in results.items() if k != "Optimistix"}
    goals = [
        goal(
            "`least_squares`: 76 problems solved",
            "all that another solves",
            f"{counts['Stepax']} ({others(counts)}); lost to another: "
            f"{missed(results, lambda x: x.solved)}",
        ),
        goal(
            "regressions with six digits, of 54",
            "wherever SciPy has them",
            f"{six['Stepax']} ({others(six)}); lost to SciPy: "
            f"{missed(first, lambda x: x.digits >= 6)}",
        ),
        goal(
            "evaluations by SciPy's, median",
            "1.0",
            f"{ratio(results, 'SciPy lm')} of lm, {ratio(results, 'SciPy trf')} of trf",
        ),
    ]
    return {
        "fits": said._replace(goals=goals),
        "all fits": Table(top, cells, []),
    }


def measure_float32() -> dict[str, Table]:
    with jax.enable_x64(False):
        said = summary(run()[2])
    counts = {row[0]: row[1] for row in said.rows}
    got = ", ".join(f"{name} {n}" for name, n in counts.items())
    goals = [goal("the same in float32: solved of 76", "reported", got)]
    return {"float32": said._replace(goals=goals)}
