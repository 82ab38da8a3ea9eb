"""A success is the end: a restart from there, with fresh curvature, hardly helps."""

import jax
import jax.numpy as jnp
import pytest

import stepax
from benchmarks.honest import FUNCTIONS, study
from stepax.solve import Status, least_squares, quadratic_program


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ("float64", "float32"))
@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_success_is_improved_by_a_restart(name, dtype, x64):
    found = study(name, dtype, count=1)
    assert found.wrong == 0, found
    # In float32 an offset of 1e10 hides all; a kink has no small gradient.
    is_kind = name in ("rosenbrock", "quartic", "wood", "log cosh")
    assert dtype == "float32" or not is_kind or found.successes == found.runs


def test_a_kink_is_no_success(x64):
    # Between the two kinks the slope is 1 or -1, never small.
    found = stepax.minimize(
        lambda x: jnp.abs(x[0]) + jnp.abs(3 * x[0] - 1), jnp.ones(1)
    )
    assert found.status is Status.LINE_SEARCH_FAILED and found.grad_norm >= 1


def test_a_minimum_that_is_reached_exactly_is_one(x64):
    hill = lambda x: -jnp.exp(-jnp.sum(x**2) / 2)
    starts = jnp.array([[1.0, 0.5], [3, 2], [5, 3], [0.1, 0.2], [4, 4], [2, -6]])
    found = jax.jit(jax.vmap(lambda x: stepax.minimize(hill, x)))(starts)
    is_least = jnp.abs(found.value + 1) < 1e-15
    assert is_least.sum() >= 5 and found.success[is_least].all()
    assert not (found.code == Status.LINE_SEARCH_FAILED)[is_least].any()


SOLVERS = {
    "lbfgsb": lambda x, b: stepax.minimize(lambda x: jnp.sum(x**2), x, bounds=b),
    "sqp": lambda x, b: stepax.minimize(
        lambda x: jnp.sum(x**2), x, bounds=b, constraints=lambda x: x[0] - x[1]
    ),
    "least squares": lambda x, b: least_squares(lambda x: x - 3.0, x, bounds=b),
    "quadratic program": lambda x, b: quadratic_program(jnp.eye(2), x, bounds=b),
}


@pytest.mark.parametrize("name", SOLVERS)
def test_traced_bounds_that_cross_are_no_success(name):
    """Known ones raise an error, except where a status says that nothing is inside."""
    solve = jax.jit(lambda *b: SOLVERS[name](jnp.ones(2), b))
    low, high = jnp.array([0.0, 2.0]), jnp.array([2.0, 1.0])
    assert not solve(low, high).success
    assert solve(jnp.zeros(2), high).success
