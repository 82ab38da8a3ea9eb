"""Convex quadratic programs at random, and how well a point solves one."""

from typing import Any

import numpy as np


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
