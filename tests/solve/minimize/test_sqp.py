"""Sequential quadratic programming: hard starts, elastic steps, batches, sizes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems.constrained import measured, ours, theirs
from problems.hock_schittkowski import PROBLEMS

import stepax
from stepax.solve import Status
from stepax.solve.constraints import equality, inequality


pytestmark = pytest.mark.slow  # but for those that say how many cases are few


# The fields of its result may be `None`, so that types would be in the way.
minimize: Any = stepax.minimize


def bowl(x, center: Any = 2.0):
    return jnp.sum((x - center) ** 2)


def total(x):
    return jnp.sum(x)


def test_it_takes_at_most_half_as_many_evaluations_again_as_slsqp(x64):
    ratios = []
    for problem in PROBLEMS:
        found = ours(problem, method="sqp")
        error, violation, count = measured(problem, found.params, found.evaluations)
        assert found.success and max(error, violation) <= 1e-6, problem.number
        ratios.append(count / theirs(problem, "SLSQP").nfev)
    assert np.median(ratios) <= 1.5


circle = lambda r: equality(lambda x: jnp.sum(x**2), r**2)
CORNER = [equality(total, 1.0), inequality(lambda x: x[0] * x[1], lower=0.1)]
# A function, its constraints, a start, bounds, and the minimum.
HARD: dict[str, tuple] = {
    # The Jacobian of the circle is 0 at the start.
    "no slope": (lambda x: x[0] + 2 * x[1], circle(1.0), [0.0, 0.0], None, None),
    "far away": (bowl, circle(1.0), [1e4, -1e4], None, [0.5**0.5] * 2),
    # Linearized at the start, x² <= 1 and x >= 3/4 have no common solution.
    "inconsistent": (
        lambda x: x[0] ** 2 + x[1] ** 2,
        [
            inequality(lambda x: x[0] ** 2, upper=1.0),
            inequality(lambda x: x[0], lower=0.75),
        ],
        [0.25, 1.0],
        None,
        [0.75, 0.0],
    ),
    "redundant": (
        bowl,
        [equality(total, 1.0), equality(lambda x: 2 * total(x), 2.0), *CORNER],
        [3.0, -3.0],
        None,
        [0.5, 0.5],
    ),
    "all kinds": (
        lambda x: (x[0] - 3) ** 2 + (x[1] - 1) ** 2,
        CORNER,
        [0.0, 0.6],
        (0.0, 0.7),
        [0.7, 0.3],
    ),
    "a flat start": (
        lambda x: jnp.sum(x**4) - x[0],
        inequality(total, upper=-1.0),
        [0.0, 0.0],
        None,
        None,
    ),
}


@pytest.mark.slow("test_minima_of_the_collection_are_found_in_float64")
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("name", HARD)
def test_hard_starts_reach_a_minimum(name, dtype):
    fun, constraints, start, bounds, minimum = HARD[name]
    with jax.enable_x64(dtype == jnp.float64):
        found = minimize(
            fun,
            jnp.asarray(start, dtype),
            bounds=bounds,
            constraints=constraints,
            method="sqp",
        )
        # Half of the digits, as the tolerances are.
        atol = 4 * float(jnp.finfo(dtype).eps) ** 0.5
        assert found.success and found.params.dtype == dtype
        assert found.violation <= atol and found.evaluations <= 100
        if minimum is not None:
            np.testing.assert_allclose(found.params, minimum, atol=atol)


@pytest.mark.slow("test_random_programs_are_solved_and_infeasible_ones_named")
@pytest.mark.parametrize("distance", [0.0, 1.0, 50.0])
def test_parallel_lines_without_a_common_point_are_infeasible(distance):
    lines = [equality(total, 0.0), equality(total, distance + 1.0)]
    start = jnp.array([distance, 3.0])
    found = minimize(bowl, start, constraints=lines, method="sqp")
    assert found.status is Status.INFEASIBLE
    # The least sum of squares, up to what the cost of a violation leaves.
    np.testing.assert_allclose(found.violation, (distance + 1) / 2, rtol=0.05)


def test_units_do_not_matter(x64):
    for cost, unit in (1.0, 1e6), (1e-6, 1e6), (1e8, 1e-4), (1e6, 1.0):
        limit = inequality(lambda x, unit=unit: unit * total(x), upper=unit)
        fun = lambda x, c=cost: c * bowl(x)
        found = minimize(fun, jnp.zeros(2), constraints=limit, method="sqp")
        assert found.success and found.evaluations <= 10
        np.testing.assert_allclose(found.params, 0.5, rtol=1e-6)
        np.testing.assert_allclose(found.multipliers, 3 * cost / unit, rtol=1e-5)


def test_a_lane_that_is_done_does_not_change(x64):
    """A lane in a batch is that alone, also beside lanes that take much longer."""
    starts = jnp.array([[0.5, 0.5], [-50.0, 90.0], [3.0, -2.0]])
    fun = lambda x: (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2
    run = lambda x: minimize(fun, x, constraints=circle(1.0), method="sqp")
    found = jax.vmap(run)(starts)
    assert found.success.all() and len(set(found.steps.tolist())) > 1
    for i, x in enumerate(starts):
        alone = run(x)
        assert found.steps[i] == alone.steps
        np.testing.assert_allclose(found.params[i], alone.params, rtol=1e-9)


def test_given_tolerances_of_value_and_step_end_a_run(x64):
    fun = lambda x: jnp.sum((x - 2) ** 4 * jnp.array([1.0, 3.0]))
    run = lambda **tol: minimize(
        fun, jnp.zeros(2), constraints=CORNER[0], method="sqp",
        tol=stepax.solve.Tolerances(gradient=1e-12, **tol),
    )  # fmt: skip
    by_value, by_step, whole = run(value=1e-2), run(step=1e-1), run()
    assert by_value.status is Status.CONVERGED_BY_VALUE
    assert by_step.status is Status.CONVERGED_BY_STEP
    assert whole.success and whole.steps > max(by_value.steps, by_step.steps)


def test_trees_complex_arrays_and_their_derivatives(x64):
    start = {"z": jnp.array([1.0 + 1.0j]), "x": jnp.ones(()), "name": "x"}

    def fun(p, a):
        return jnp.sum(jnp.abs(p["z"] - a) ** 2) + p["x"] ** 2

    def corner(a):
        limit = equality(lambda p, a: jnp.sum(p["z"].real) + p["x"], 0.0)
        found = minimize(fun, start, args=a, constraints=limit, method="sqp")
        return found.params["x"]

    # x = -re z, so that (re z - a)² + x² is least at re z = a / 2.
    np.testing.assert_allclose(corner(3.0), -1.5, atol=1e-7)
    np.testing.assert_allclose(jax.grad(corner)(3.0), -0.5, atol=1e-7)


def test_many_parameters_or_constraints_take_the_other_method():
    """Which takes more evaluations, and rounds instead of steps."""
    run = lambda n, fun, **more: (
        minimize(
            bowl, jnp.zeros(n), constraints=inequality(fun, upper=1.0), **more
        ).evaluations
    )
    assert run(100, total) == run(100, total, method="sqp")
    assert run(101, total) == run(101, total, method="lbfgs")
    many = lambda x: jnp.repeat(x, 101)
    assert run(2, many) == run(2, many, method="lbfgs")


@pytest.mark.few(1)
def test_it_needs_constraints():
    with pytest.raises(ValueError, match="'sqp' is for `constraints`, but there are"):
        minimize(bowl, jnp.zeros(2), method="sqp")
