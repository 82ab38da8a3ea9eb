"""Regressions of NIST from both starts, and problems of Moré, Garbow and Hillstrom.

A regression is solved if every parameter has four digits of those certified; a problem
of Moré, Garbow and Hillstrom if the sum of squares is within 1e-6 of the minimum,
relative to it where it is above 1.  All use their default tolerances.
"""

import statistics

import jax.numpy as jnp
import numpy as np

from ..problems import more_garbow_hillstrom as few, strd
from ..problems.systems import stacked
from .peers import MOST, SOLVERS, head, line


def digits(x: np.ndarray, certified: np.ndarray) -> float:
    """The number of right digits of the worst parameter, at most 11."""
    error = np.max(np.abs(x - certified) / np.abs(certified))
    return 0.0 if not error < 1 else min(11.0, -np.log10(max(error, 1e-11)))


def jobs() -> list:
    """Name, residuals, start, and a function of x that says how good it is."""
    found = []
    for fit in strd.collect():
        for i, start in enumerate(fit.starts):
            good = lambda x, fit=fit: digits(x, fit.certified)
            found.append(
                (f"{fit.name}, start {i + 1}", fit.residuals, start, good, 4.0)
            )
    for _, fun, start, minimum in few.TABLE:
        residuals = stacked(fun)

        def good(x, residuals=residuals, minimum=minimum):
            squares = float(jnp.sum(residuals(jnp.asarray(x, float)) ** 2))
            excess = (squares - minimum) / max(1.0, minimum)
            return -np.log10(max(excess, 1e-16)) if excess == excess else -1.0

        name = f"{fun.__name__.replace('_', ' ')} {len(start)}"
        found.append((name, residuals, np.array(start, float), good, 6.0))
    return found


def main() -> None:
    names = list(SOLVERS)
    head("problem", *(x for name in names for x in (f"{name}: digits", "evaluations")))
    rows = []
    for name, residuals, start, good, enough in jobs():
        row = []
        for solver in SOLVERS.values():
            x, evaluations = solver(residuals, start)
            row.append((good(x), evaluations, good(x) >= enough))
        rows.append(row)
        line(name, *(f"{g:.1f} | {n if n < MOST else 'all'}" for g, n, _ in row))
    print()
    for i, name in enumerate(names):
        solved = sum(row[i][2] for row in rows)
        six = sum(row[i][0] >= 6 for row in rows[:54])
        both = [row[0][1] / row[i][1] for row in rows if row[0][2] and row[i][2]]
        ratio = statistics.median(both)
        print(
            f"{name}: {solved} of {len(rows)} solved, six digits in {six} of 54 "
            f"regressions; evaluations of Stepax by its own, median {ratio:.3f}"
        )
    missed = [
        job[0]
        for job, row in zip(jobs(), rows, strict=True)
        if not row[0][2] and any(x[2] for x in row)
    ]
    print("solved by another and not by Stepax:", ", ".join(missed) or "none")
