"""What is traced and compiled for ten parameters, beside `minimize` and Optimistix."""

import statistics
import time

import jax
import jax.numpy as jnp
import optimistix
from jax.extend.core import ClosedJaxpr, Jaxpr

import stepax

from ..problems.systems import broyden_banded


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
    return lambda x: stepax.least_squares(fun, x).params


def minimize(fun):
    return lambda x: stepax.minimize(lambda x: jnp.sum(fun(x) ** 2), x).params


def theirs(fun):
    solver = optimistix.LevenbergMarquardt(rtol=1e-8, atol=1e-8)
    return lambda x: (
        optimistix.least_squares(
            lambda x, _: fun(x), solver, x, max_steps=500, throw=False
        ).value
    )


def main() -> None:
    runs = {"least_squares": ours, "minimize": minimize, "Optimistix": theirs}
    x = -jnp.ones(10)
    seconds = {name: [] for name in runs}
    for _ in range(4):
        for name, run in runs.items():
            fun = lambda x: broyden_banded(x)  # a new one, which has no program yet
            begin = time.perf_counter()
            jax.jit(run(fun)).lower(x).compile()
            seconds[name].append(time.perf_counter() - begin)
    for name, run in runs.items():
        fun = lambda x: broyden_banded(x)
        count = equations(jax.make_jaxpr(run(fun))(x).jaxpr)
        print(
            f"{name}: {count} equations, traced and compiled in "
            f"{statistics.median(seconds[name][1:]):.2f} s"
        )
