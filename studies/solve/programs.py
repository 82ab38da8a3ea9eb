"""Random convex quadratic programs: conditions of optimality, infeasible ones.

A program has a solution, since a point is within all limits, and Q is positive definite
or all variables are bounded.  In half of those below, rows and columns are multiplied
by factors between 1e-3 and 1e3, and what is found is judged in the units before that.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import stepax
from tests.problems.quadratic import infeasible, kkt, program

from .table import Table, goal, head, line


def solved_in_other_units(seed: int, cost: tuple, limits: dict) -> tuple[Any, float]:
    """The result with scaled rows and columns, and its error in the units before."""
    (q, c), (a, b), (g, low, high) = cost, limits["equality"], limits["inequality"]
    r = np.random.default_rng(seed)
    columns, first, second = (
        10.0 ** r.uniform(-3, 3, size) for size in (len(c), len(b), len(low))
    )
    of = lambda rows, x: rows[:, None] * x * columns
    found = stepax.solve.quadratic_program(
        of(columns, q),
        c * columns,
        equality=(of(first, a), first * b),
        inequality=(of(second, g), second * low, second * high),
        bounds=tuple(x / columns for x in limits["bounds"]),
    )
    y = dict(zip(("equality", "inequality"), (first, second), strict=True))
    y = {k: y.get(k, 1 / columns) * v for k, v in found.multipliers.items()}
    return found, kkt(cost, limits, columns * found.params, y)


SIZES = [int(x) for x in np.geomspace(2, 200, 10).round()]
EACH = 20


def derivative_error() -> float:
    """The largest error of a slope against a difference, relative where above 1."""
    r = np.random.default_rng(3)
    root, g = r.normal(size=(2, 4, 4))
    q, c, high = root @ root.T, r.normal(size=4), g @ np.full(4, 0.2) + 0.05

    @jax.jit
    def value(q, c, g, high):
        found = stepax.solve.quadratic_program(
            q, c, inequality=(g, None, high), bounds=(0.0, None)
        )
        pulls = sum(jnp.sum(y**2) for y in found.multipliers.values())
        return jnp.sum(jnp.sin(found.params)) + found.value + pulls

    arrays = tuple(map(jnp.asarray, (q, c, g, high)))
    slopes, errors = jax.jit(jax.grad(value, tuple(range(4))))(*arrays), []
    for slope in range(4):
        d = [jnp.zeros_like(x) for x in arrays]
        d[slope] = jnp.asarray(r.normal(size=arrays[slope].shape))
        up, down = (
            value(*(x + t * y for x, y in zip(arrays, d, strict=True)))
            for t in (1e-6, -1e-6)
        )
        exact, difference = jnp.sum(slopes[slope] * d[slope]), (up - down) / 2e-6
        errors.append(float(abs(exact - difference) / max(1.0, abs(difference))))
    return max(errors)


def measure() -> dict[str, Table]:
    top = head(
        "variables", "solved, of 20", "largest KKT residual", "in other units",
        "infeasible named, of 20",
    )  # fmt: skip
    rows, worst, solved, named = [], 0.0, 0, 0
    for i, n in enumerate(SIZES):
        plain, other, good, right = [], [], 0, 0
        for seed in range(EACH * i, EACH * (i + 1)):
            cost, limits = program(seed, n)
            found = stepax.solve.quadratic_program(*cost, **limits)
            plain.append(kkt(cost, limits, found.params, found.multipliers))
            scaled, error = solved_in_other_units(seed, cost, limits)
            other.append(error)
            good += bool(found.success) and bool(scaled.success)
            none = stepax.solve.quadratic_program(*cost, **infeasible(limits))
            right += none.status is stepax.solve.Status.INFEASIBLE
        rows.append(line(n, good, f"{max(plain):.0e}", f"{max(other):.0e}", right))
        worst, solved, named = max(worst, *plain, *other), solved + good, named + right
    count = EACH * len(SIZES)
    goals = [
        goal(
            "`quadratic_program`: KKT residual of 200 programs, in two units each",
            "1e-8",
            f"{worst:.1e}, {solved} of {count} solved",
        ),
        goal("infeasible programs named", "all", f"{named} of {count}"),
        goal("derivatives against differences", "1e-5", f"{derivative_error():.0e}"),
    ]
    return {"programs": Table(top, rows, goals)}
