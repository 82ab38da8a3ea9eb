"""Roots of the systems of Moré, Garbow and Hillstrom, beside SciPy's hybr.

A system is solved if no |f| element is above 1e-6.
"""

import statistics
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize

import stepax

from ..problems.systems import collect
from .peers import MOST, head, line


def ours(method):
    def run(system):
        x0 = jnp.asarray(system.x0, float)
        found = stepax.root(system.fun, x0, method=method, max_steps=MOST)
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


RUNS = {
    "newton": ours("newton"),
    "broyden": ours("broyden"),
    "krylov": ours("krylov"),
    "SciPy hybr": hybr,
}


def main() -> None:
    head("system", *(x for name in RUNS for x in (f"{name}: residual", "evaluations")))
    rows = []
    for system in collect():
        row = []
        for run in RUNS.values():
            x, evaluations, status = run(system)
            size = float(np.max(np.abs(system.fun(jnp.asarray(x, float)))))
            row.append((size <= 1e-6, evaluations, size, status))
        rows.append(row)
        line(system.name, *(f"{size:.0e} | {n}" for _, n, size, _ in row))
    print()
    for i, name in enumerate(RUNS):
        both = [row[i][1] / row[-1][1] for row in rows if row[i][0] and row[-1][0]]
        print(
            f"{name}: {sum(row[i][0] for row in rows)} of {len(rows)} solved; "
            f"evaluations by those of hybr, median {statistics.median(both):.2f}"
        )
    wrong = [
        f"{system.name} ({name})"
        for system, row in zip(collect(), rows, strict=True)
        for name, (is_small, _, _, status) in zip(RUNS, row, strict=True)
        if status.startswith("CONVERGED") and not is_small
    ]
    print("said to be solved and are not:", ", ".join(wrong) or "none")
