"""Compare `minimize` with constraints to SciPy's SLSQP and trust-constr.

Run it with `python -m tests.problems.constrained`: it prints, for each problem of Hock
and Schittkowski's collection, the error of the value, |f - f*| / max(1, |f*|), the
largest violation of a constraint or bound, and evaluations of the function.  A problem
is solved if neither of the first two is above 1e-6 (1e-3 with `--float32`, where SciPy
is left out, since it computes in float64).  SciPy gets derivatives by JAX, and
tolerances of 1e-9 for the value (SLSQP) and the gradient (trust-constr).
"""

import argparse
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

import stepax

from .hock_schittkowski import PROBLEMS, Limited


Row = tuple[float, float, int]


def start(problem: Limited) -> jax.Array:
    """The start, inside of the bounds."""
    x = jnp.asarray(problem.start, float)
    return x if problem.bounds is None else jnp.clip(x, *_sides(problem))


def ours(problem: Limited, **options: Any) -> stepax.solve.Result:
    constraints = []
    if problem.zero is not None:
        constraints.append(stepax.solve.constraints.equality(problem.zero))
    if problem.positive is not None:
        constraints.append(stepax.solve.constraints.inequality(problem.positive))
    options |= {} if problem.bounds is None else {"bounds": _sides(problem)}
    return stepax.minimize(
        problem.fun, start(problem), constraints=constraints, **options
    )


def theirs(problem: Limited, method: str) -> Any:
    constraints = []
    for kind, f in ("eq", problem.zero), ("ineq", problem.positive):
        if f is not None:
            at, slope = jax.jit(f), jax.jit(jax.jacobian(f))
            one = {"type": kind, "fun": lambda x, at=at: np.asarray(at(x))}
            constraints.append(one | {"jac": lambda x, d=slope: np.asarray(d(x))})
    fun = jax.jit(jax.value_and_grad(problem.fun))
    options: dict = {"maxiter": 2000}
    options |= {"ftol": 1e-9} if method == "SLSQP" else {"gtol": 1e-9, "xtol": 1e-12}
    make: Any = scipy.optimize.Bounds
    box = None if problem.bounds is None else make(*map(np.asarray, _sides(problem)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return scipy.optimize.minimize(
            lambda x: [np.asarray(y, float) for y in fun(x)],
            np.asarray(start(problem)),
            jac=True,
            method=method,
            bounds=box,
            constraints=constraints,
            options=options,
        )


def measured(problem: Limited, x: Any, evaluations: Any) -> Row:
    """The error of the value, the violation, and the evaluations."""
    x = jnp.asarray(x)
    beyond = [jnp.zeros(1)]
    if problem.zero is not None:
        beyond.append(jnp.abs(problem.zero(x)))
    if problem.positive is not None:
        beyond.append(-problem.positive(x))
    if problem.bounds is not None:
        low, high = _sides(problem)
        beyond += [low - x, x - high]
    error = abs(float(problem.fun(x)) - problem.minimum)
    largest = float(jnp.max(jnp.concatenate(beyond)))
    return error / max(1, abs(problem.minimum)), largest, int(evaluations)


def _sides(problem: Limited) -> tuple[jax.Array, jax.Array]:
    low, high = problem.bounds or (None, None)
    like = jnp.ones(len(problem.start))
    side = lambda x, none: like * jnp.asarray(none if x is None else x, float)
    return side(low, -jnp.inf), side(high, jnp.inf)


METHODS = "SLSQP", "trust-constr"


def rows(
    methods: tuple[str, ...], **options: Any
) -> Iterator[tuple[Limited, list[Row], str]]:
    for problem in PROBLEMS:
        found = ours(problem, **options)
        columns = [measured(problem, found.params, found.evaluations)]
        for method in methods:
            result = theirs(problem, method)
            columns.append(measured(problem, result.x, result.nfev))
        yield problem, columns, found.status.name


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--float32", action="store_true")
    parser.add_argument("--alone", action="store_true", help="without SciPy")
    parser.add_argument("--method", default="auto", choices=["auto", "sqp", "lbfgs"])
    given = parser.parse_args()
    narrow = given.float32
    jax.config.update("jax_enable_x64", not narrow)
    methods = () if narrow or given.alone else METHODS
    limit, solved = 1e-3 if narrow else 1e-6, np.zeros(1 + len(methods), int)
    heads = ["HS"]
    for solver in "Stepax", *methods:
        heads += [f"{solver}: error", "violation", "evaluations"]
    heads.append("status")
    print("| " + " | ".join(heads) + " |\n" + "| --- " * len(heads) + "|")
    for problem, columns, status in rows(methods, method=given.method):
        cells = [f"{e:.0e} | {v:.0e} | {n}" for e, v, n in columns]
        solved += [e <= limit and v <= limit for e, v, _ in columns]
        print(f"| {problem.number} | {' | '.join(cells)} | {status} |", flush=True)
    print(f"\nsolved, of {len(PROBLEMS)}:", *solved)


if __name__ == "__main__":
    main()
