"""SQP on the problems of Hock and Schittkowski, beside SLSQP.

The table of each problem is that of `python -m tests.problems.constrained`.
"""

import statistics

from tests.problems.constrained import rows

from .table import Table, goal


def measure() -> dict[str, Table]:
    found = [columns for _, columns, _ in rows(("SLSQP",), method="sqp")]
    good = lambda row: row[0] <= 1e-6 and row[1] <= 1e-6
    solved = [sum(good(x[i]) for x in found) for i in (0, 1)]
    ratios = [own[2] / peer[2] for own, peer in found if good(own) and good(peer)]
    goals = [
        goal(
            f"SQP: problems of Hock and Schittkowski, of {len(found)}, to 1e-6",
            "all",
            f"{solved[0]} (SLSQP {solved[1]})",
        ),
        goal(
            "evaluations by SLSQP's, median",
            "1.5",
            f"{statistics.median(ratios):.2f} ({min(ratios):.1f} to {max(ratios):.1f})",
        ),
    ]
    return {"sqp": Table([], [], goals)}
