"""Limits that cannot bind, flat directions, and units change no status."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stepax
from stepax.solve import Status, constraints, quadratic_program


_RANDOM = np.random.RandomState(0)
_N, _SIZE, _ROWS = 20, 6, 4
_ROOTS = _RANDOM.randn(_N, _SIZE, _SIZE)
Q = _ROOTS @ _ROOTS.transpose(0, 2, 1) / _SIZE
C, START = _RANDOM.randn(2, _N, _SIZE)
G = _RANDOM.randn(_N, _ROWS, _SIZE)
UPPER = np.einsum("bij,bj->bi", G, START) + _RANDOM.rand(_N, _ROWS)
IS_EVEN = np.arange(_SIZE) % 2 == 0


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ("float64", "float32"))
def test_a_limit_so_far_away_that_it_cannot_bind_is_none(dtype, x64):
    def solve(q, c, g, upper, start, none):
        side = jnp.where(IS_EVEN, start - 1, -none)
        limits = g, jnp.full_like(upper, -none), upper
        bounds = side, jnp.full_like(start, none)
        return quadratic_program(q, c, inequality=limits, bounds=bounds)

    one = jax.vmap(solve, (0, 0, 0, 0, 0, None))
    run = jax.jit(jax.vmap(one, (None,) * 5 + (0,)))
    nones = np.array([np.inf, 1e7, 1e10, 1e20, 1e30])
    found = run(*(jnp.asarray(x, dtype) for x in (Q, C, G, UPPER, START, nones)))
    assert found.success.all() and found.params.dtype == dtype
    # The default tolerance is eps^0.6, relative to the terms.
    near = 1e-8 if dtype == "float64" else 2e-3
    values = np.asarray(found.value)
    np.testing.assert_allclose(values, np.tile(values[:1], (5, 1)), atol=near)


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ("float64", "float32"))
def test_a_program_is_not_unbounded_where_it_is_definite(dtype, x64):
    rows, upper = _RANDOM.randn(_N, 1, 3), _RANDOM.randn(_N, 1)
    costs = _RANDOM.randn(_N, 3)

    def solve(flat, c, g, upper):
        q = jnp.diag(jnp.array([1, 1, flat]))
        return quadratic_program(q, c, inequality=(g, None, upper))

    run = jax.jit(jax.vmap(jax.vmap(solve, (None, 0, 0, 0)), (0, None, None, None)))
    flats = [1e-6, 1e-8] if dtype == "float64" else [1e-3, 1e-8]
    given = (jnp.asarray(x, dtype) for x in (flats, costs, rows, upper))
    codes = np.asarray(run(*given).code)
    assert not (codes == Status.UNBOUNDED).any()
    assert dtype == "float32" or (codes <= Status.CONVERGED_BY_STEP).all()


def test_a_program_that_rounding_stops_is_stuck():
    # Limits that contradict each other by less than float32 tells, at this size.
    q, g = jnp.eye(2) * 1e-6, jnp.array([[1.0, 1.0], [1.0, 1.0 + 1e-7]])
    found = quadratic_program(q, jnp.ones(2), inequality=(g, 1e7, 1e7 + 1), tol=1e-12)
    assert found.status in (Status.STUCK, Status.INFEASIBLE) and found.steps < 200


def test_a_constraint_without_a_multiplier_ends(x64):
    found = stepax.minimize(
        lambda x: jnp.sum((x - 1) ** 2),
        jnp.array([1.0, 2.0]),
        constraints=constraints.inequality(lambda x: x[0] ** 2, upper=0.0),
    )
    np.testing.assert_allclose(found.params, [0, 1], atol=1e-4)
    assert found.success and found.evaluations < 109  # SLSQP's
