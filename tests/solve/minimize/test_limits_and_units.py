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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_program_that_rounding_stops_is_stuck():
    # In float32 the conditions are met to about 1e-7, and not to 1e-12.
    given = (jnp.asarray(x[0], jnp.float32) for x in (Q, C, G, UPPER))
    q, c, g, upper = given
    found = quadratic_program(q, c, inequality=(g, None, upper), tol=1e-12)
    assert found.status is Status.STUCK and 0 < found.steps < 200


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ("float64", "float32"))
def test_degenerate_programs_of_integers_are_solved(dtype, x64):
    random = np.random.RandomState(0)
    n, size, rows = 200, 6, 8
    roots = random.randint(-2, 3, (n, size, 3))
    q = roots @ roots.transpose(0, 2, 1)
    x, a = random.randint(-2, 3, (n, size)), random.randint(-2, 3, (n, 2, size))
    g = random.randint(-2, 3, (n, rows, size))
    a[::2, 1], g[:, 1] = -a[::2, 0], g[:, 0]  # rows that depend on each other
    y, z = random.randint(-2, 3, (n, 2)), random.randint(0, 3, (n, rows))
    # All limits are met exactly at x, with multipliers that are often 0.
    c = -np.einsum("bij,bj->bi", q, x)
    c -= np.einsum("bij,bi->bj", a, y) + np.einsum("bij,bi->bj", g, z)
    b, h = np.einsum("bij,bj->bi", a, x), np.einsum("bij,bj->bi", g, x)

    def solve(q, c, a, b, g, h):
        return quadratic_program(q, c, equality=(a, b), inequality=(g, None, h))

    given = (jnp.asarray(x, dtype) for x in (q, c, a, b, g, h))
    found = jax.jit(jax.vmap(solve))(*given)
    assert found.success.all()
    wanted = np.einsum("bi,bij,bj->b", x, q, x) / 2 + np.einsum("bi,bi->b", c, x)
    near = 1e-8 if dtype == "float64" else 1e-3
    np.testing.assert_allclose(found.value, wanted, rtol=near, atol=near)


@pytest.mark.slow
def test_a_constraint_without_a_multiplier_ends(x64):
    found = stepax.minimize(
        lambda x: jnp.sum((x - 1) ** 2),
        jnp.array([1.0, 2.0]),
        constraints=constraints.inequality(lambda x: x[0] ** 2, upper=0.0),
    )
    np.testing.assert_allclose(found.params, [0, 1], atol=1e-4)
    assert found.success and found.evaluations < 109  # SLSQP's


@pytest.mark.slow
@pytest.mark.parametrize("start", (60.0, 70.0, 80.0, 85.0, 87.0))
def test_a_start_as_steep_as_float32_allows_leads_to_the_minimum(start):
    """Where it is flat, squares of gradients underflow in the unit of the start."""
    fun = lambda p: jnp.sum(jnp.exp(p) - p + jnp.exp(-p / 10))
    found = stepax.minimize(fun, start * jnp.array([1.0, 0.5, 0.01]))
    least = stepax.minimize(fun, jnp.zeros(3)).value
    np.testing.assert_allclose(found.value, least, rtol=1e-6)
