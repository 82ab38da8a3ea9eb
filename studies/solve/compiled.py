"""What is traced and compiled for ten parameters, beside `minimize` and Optimistix.

Seconds are those of the processor, of all threads; the solvers take turns, and the
medians are compared.
"""

import statistics
import time

import jax
import jax.numpy as jnp
import optimistix
from jax.extend.core import ClosedJaxpr, Jaxpr

import stepax
from tests.problems.systems import broyden_banded

from .table import Table, goal, head, line


def equations(jaxpr) -> int:
    """The number of equations, with those of inner programs."""
    count = 0
    for eqn in jaxpr.eqns:
        count += 1
        inner = jax.tree.leaves(list(eqn.params.values()), is_leaf=_is_program)
        count += sum(equations(_bare(x)) for x in inner if _is_program(x))
    return count


def _is_program(x) -> bool:
    return isinstance(x, Jaxpr | ClosedJaxpr)


def _bare(x):
    return x.jaxpr if isinstance(x, ClosedJaxpr) else x


def ours(fun):
    return lambda x: stepax.solve.least_squares(fun, x).params


def minimize(fun):
    return lambda x: stepax.minimize(lambda x: jnp.sum(fun(x) ** 2), x).params


def theirs(fun):
    solver = optimistix.LevenbergMarquardt(rtol=1e-8, atol=1e-8)
    return lambda x: (
        optimistix.least_squares(
            lambda x, _: fun(x), solver, x, max_steps=500, throw=False
        ).value
    )


RUNS = {"least_squares": ours, "minimize": minimize, "Optimistix": theirs}
ROUNDS = 9


def medians() -> dict[str, tuple[int, float]]:
    """The number of equations of each, and the seconds to trace and compile it."""
    x = -jnp.ones(10)
    seconds = {name: [] for name in RUNS}
    for _ in range(ROUNDS):
        for name, run in RUNS.items():
            fun = lambda x: broyden_banded(x)  # a new one, which has no program yet
            begin = time.process_time()
            jax.jit(run(fun)).lower(x).compile()
            seconds[name].append(time.process_time() - begin)
    fun = lambda x: broyden_banded(x)
    return {
        name: (
            equations(jax.make_jaxpr(run(fun))(x).jaxpr),
            statistics.median(seconds[name][1:]),
        )
        for name, run in RUNS.items()
    }


def measure() -> dict[str, Table]:
    found = medians()
    top = head("solver", "equations", "seconds of a processor")
    rows = [line(name, count, f"{t:.2f}") for name, (count, t) in found.items()]
    (count, seconds), peer = found["least_squares"], found["Optimistix"]
    goals = [
        goal(
            "equations of `least_squares`, 10 parameters, by those of `minimize`",
            "1.5",
            f"{count / found['minimize'][0]:.2f} ({count})",
        ),
        goal(
            "processor time to compile it, by Optimistix",
            "1.0",
            f"{seconds / peer[1]:.2f}",
        ),
    ]
    return {"compiled": Table(top, rows, goals)}
