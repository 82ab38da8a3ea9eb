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

from .table import Table, goal, head, line


def program(seed: int, n: int) -> tuple[tuple, dict]:
    """A program with a solution: a point within all limits, and Q of some rank.

    With a singular Q all variables are bounded, so that there is a minimum.
    """
    r = np.random.default_rng(1000 * seed + n)
    root = r.normal(size=((n, n // 2, 0)[seed % 3], n))
    scale = 10.0 ** r.integers(-3, 4)
    x, g = r.normal(size=n), r.normal(size=(n, n))
    cut = lambda v, side: np.where(r.uniform(size=v.shape) < 0.5, v, side)
    a, rows = g[: n // 4], g[n // 4 :]
    low = cut(rows @ x - r.uniform(size=len(rows)), -np.inf)
    high = cut(rows @ x + r.uniform(size=len(rows)), np.inf)
    box = (x - 2, x + 3)
    if seed % 3 == 0:
        box = cut(x - r.uniform(size=n), -np.inf), cut(x + 1, np.inf)
    cost = scale * root.T @ root, scale * r.normal(size=n)
    return cost, {
        "equality": (a, a @ x),
        "inequality": (rows, low, high),
        "bounds": box,
    }


def infeasible(limits: dict) -> dict:
    """With the sum of two rows above the sum of their upper limits."""
    g, low, high = limits["inequality"]
    g = np.concatenate([g, g[:1] + g[-1:]])
    high = np.append(np.where(np.isfinite(high), high, 9.0), np.inf)
    low = np.append(low, high[0] + high[-2] + 0.5)
    return limits | {"inequality": (g, low, high)}


def kkt(cost: tuple, limits: dict, params: Any, multipliers: dict) -> float:
    """The largest error of the optimality conditions, in NumPy's float64.

    The gradient and the products are relative to the size of the cost.
    """
    (q, c), x = cost, np.asarray(params)
    y = {k: np.asarray(v) for k, v in multipliers.items()}
    (a, b), (g, low, high) = limits["equality"], limits["inequality"]
    unit = max(1, np.abs(c).max(), np.abs(q).max())
    slope = q @ x + c + a.T @ y["equality"] + g.T @ y["inequality"] + y["bounds"]
    errors = [np.abs(slope) / unit, np.abs(a @ x - b)]
    rows = (g @ x, low, high, y["inequality"]), (x, *limits["bounds"], y["bounds"])
    for value, lower, upper, z in rows:
        errors += [lower - value, value - upper]
        # A multiplier is above 0 only at the upper limit, below 0 at the lower one.
        away = np.where(z > 0, upper - value, value - lower)
        errors.append(np.abs(np.where(z == 0, 0, away) * z) / unit)
    return max(float(np.max(e, initial=0)) for e in errors)


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
