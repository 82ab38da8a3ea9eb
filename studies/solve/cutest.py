"""Unconstrained problems of CUTEst in float64, by `minimize` and SciPy's L-BFGS-B.

    python -m studies.solve.cutest --seconds 240

Problems of up to 1,000 variables, as `sif2jax` has them in JAX, with the criteria that
both solvers have by default and at most 5,000 evaluations.  A problem is solved if

    f - f* <= 1e-6 max(1, |f*|)   or   max |g| <= 1e-6 max(1, |f*|)

where f* is the lowest value that either has found.  Each run continues where the last
one ended, and keeps what it finds in `studies/evidence/cutest.json`; `--again` runs the
problems that SciPy alone has solved once more.
"""

import argparse
import importlib
import json
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from scipy import optimize

import stepax

from .table import head, line


EVIDENCE = pathlib.Path(__file__).parents[2] / "studies/evidence/cutest.json"
LARGEST, EVALUATIONS, TOL = 1_000, 5_000, 1e-6


def problems() -> dict[str, Any]:
    """The problems by name, the smallest first."""
    sif2jax = importlib.import_module("sif2jax")  # in none of the groups

    found = {}
    for problem in sif2jax.unconstrained_minimisation_problems:
        size = sum(map(np.size, jax.tree.leaves(problem.y0)))
        if 0 < size <= LARGEST:
            found[type(problem).__name__] = size, problem
    return dict(sorted(found.items(), key=lambda row: row[1][0]))


def ours(fun: Callable, x0: Any) -> dict[str, Any]:
    found = stepax.minimize(fun, x0, max_steps=EVALUATIONS)
    return {
        "value": float(found.value),
        "gradient": float(found.grad_norm),
        "evaluations": int(found.evaluations),
        "status": found.status.name,
    }


def scipys(fun: Callable, x0: Any) -> dict[str, Any]:
    both = jax.jit(jax.value_and_grad(fun))

    def evaluate(x):
        value, grad = both(jnp.asarray(x))
        return float(value), np.asarray(grad, float)

    limits = {"maxiter": EVALUATIONS, "maxfun": EVALUATIONS}
    start = np.asarray(x0, float)
    found = optimize.minimize(
        evaluate, start, jac=True, method="L-BFGS-B", options=limits
    )
    return {
        "value": float(found.fun),
        "gradient": float(np.max(np.abs(found.jac))),
        "evaluations": int(found.nfev),
        "status": str(found.message),
    }


SOLVERS = {"stepax": ours, "scipy": scipys}


def run(problem: Any) -> dict[str, Any]:
    """What both solvers find, or why a problem cannot be run."""
    # The start as one vector, as SciPy has it.
    x0, whole = jax.flatten_util.ravel_pytree(problem.y0)
    x0 = x0.astype(float)
    fun = lambda x: jnp.asarray(problem.objective(whole(x), problem.args)).reshape(())
    try:
        return {name: solve(fun, x0) for name, solve in SOLVERS.items()}
    except (TypeError, ValueError, NotImplementedError) as error:
        return {"error": f"{type(error).__name__}: {str(error)[:100]}"}


def is_solved(row: dict[str, Any], name: str) -> bool:
    values = [row[solver]["value"] for solver in SOLVERS]
    least = min((x for x in values if np.isfinite(x)), default=np.inf)
    limit = TOL * max(1.0, abs(least))
    own = row[name]
    return own["value"] - least <= limit or own["gradient"] <= limit


def lost(row: dict[str, Any]) -> bool:
    """Whether SciPy alone solves it."""
    return "error" not in row and is_solved(row, "scipy") > is_solved(row, "stepax")


def report(known: dict[str, dict]) -> None:
    rows = {name: row for name, row in known.items() if "error" not in row}
    head("solver", "solved", "evaluations")
    for solver in SOLVERS:
        count = sum(is_solved(row, solver) for row in rows.values())
        total = sum(row[solver]["evaluations"] for row in rows.values())
        line(solver, f"{count} of {len(rows)}", total)
    both = [
        row["stepax"]["evaluations"] / row["scipy"]["evaluations"]
        for row in rows.values()
        if all(is_solved(row, solver) for solver in SOLVERS)
    ]
    print(f"\nevaluations by SciPy's, where both solve: {statistics.median(both):.2f}")
    for name, row in rows.items():
        if lost(row):
            print(name, row)
    errors = {name: row["error"] for name, row in known.items() if "error" in row}
    print("not run:", errors or "none")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--again", action="store_true")
    args = parser.parse_args()
    known = json.loads(EVIDENCE.read_text()) if EVIDENCE.exists() else {}
    if args.seconds <= 0:
        return report(known)
    with jax.enable_x64(True):
        found = problems()
        begin = time.process_time()
        for name, (size, problem) in found.items():
            if time.process_time() - begin > args.seconds:
                break
            if name in known and not (args.again and lost(known[name])):
                continue
            known[name] = {"variables": size, **run(problem)}
            text = json.dumps(dict(sorted(known.items())), indent=0)
            EVIDENCE.write_text(text + "\n")
            jax.clear_caches()
        print(f"{len(known)} of {len(found)} problems")
    report(known)


if __name__ == "__main__":
    main()
