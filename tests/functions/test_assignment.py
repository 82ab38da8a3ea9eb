"""Assignments cost what SciPy's do, for every shape and kind of cost."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.optimize import linear_sum_assignment

from stepax.assignment import base_hungarian_algorithm, hungarian_algorithm


SHAPES = [(1, 1), (1, 5), (5, 1), (3, 6), (6, 3), (7, 7)]
KINDS = {
    "normal": lambda rng, shape: rng.normal(size=shape).astype(np.float32),
    "ties": lambda rng, shape: rng.integers(0, 3, shape).astype(np.int32),
    "bytes": lambda rng, shape: rng.integers(-128, 128, shape).astype(np.int8),
    # Neighbouring ones of these are one number in float32.
    "large integers": lambda rng, shape: (
        2**27 + rng.integers(0, 8, shape).astype(np.int32)
    ),
    "equal": lambda rng, shape: np.ones(shape, np.float32),
}


def cost(costs, pairs):
    return np.asarray(costs, np.float64)[
        np.asarray(pairs[0]), np.asarray(pairs[1])
    ].sum()


def assert_valid(pairs, shape):
    rows, columns = map(np.asarray, pairs)
    assert len(rows) == len(columns) == min(shape)
    assert list(rows) == sorted(set(rows)) and len(set(columns)) == len(columns)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_costs_as_little_as_scipys(shape, kind):
    rng = np.random.default_rng(0)
    for _ in range(4):
        costs = KINDS[kind](rng, shape)
        found = hungarian_algorithm(costs)
        assert_valid(found, shape)
        wanted = cost(costs, linear_sum_assignment(costs))
        assert cost(costs, found) == pytest.approx(wanted, abs=1e-5)


@pytest.mark.slow
def test_both_names_give_the_same_pairs_under_every_transformation():
    costs = jnp.asarray(np.random.default_rng(1).normal(size=(3, 4, 5)), jnp.float32)
    wanted = jax.vmap(hungarian_algorithm)(costs)
    for f in (
        hungarian_algorithm,
        base_hungarian_algorithm,
        jax.jit(hungarian_algorithm),
    ):
        found = [f(x) for x in costs]
        np.testing.assert_array_equal(np.stack([j for _, j in found]), wanted[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hungarian_algorithm", "base_hungarian_algorithm"])
def test_costs_as_little_as_optaxs(name):
    costs = jnp.asarray(np.random.default_rng(2).normal(size=(5, 4)), jnp.float32)
    with (
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        wanted = getattr(optax.assignment, name)(costs)
    assert cost(costs, hungarian_algorithm(costs)) == pytest.approx(cost(costs, wanted))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)], ids=str)
def test_nothing_to_assign(shape):
    rows, columns = hungarian_algorithm(jnp.zeros(shape))
    assert rows.shape == columns.shape == (0,) and rows.dtype == jnp.int32


@pytest.mark.slow
def test_infinite_costs_are_avoided_and_never_loop():
    rng = np.random.default_rng(3)
    for _ in range(5):
        costs = np.where(rng.random((4, 6)) < 0.4, np.inf, rng.normal(size=(4, 6)))
        costs = costs.astype(np.float32)
        found = hungarian_algorithm(costs)
        wanted = cost(costs, linear_sum_assignment(costs))
        assert cost(costs, found) == pytest.approx(wanted, abs=1e-4)
    for value in jnp.inf, -jnp.inf, jnp.nan:
        assert_valid(hungarian_algorithm(jnp.full((3, 3), value)), (3, 3))
    # One pair cannot be avoided; the rest is still as cheap as can be.
    costs = jnp.array([[jnp.inf, jnp.inf], [2.0, 1.0]])
    np.testing.assert_array_equal(hungarian_algorithm(costs)[1], [0, 1])
    np.testing.assert_array_equal(
        hungarian_algorithm(costs.at[0, 0].set(-jnp.inf))[1], [0, 1]
    )


def test_the_cost_of_the_pairs_has_a_derivative():
    costs = jnp.array([[1.0, 5.0], [5.0, 1.0]])
    found = jax.grad(lambda c: jnp.sum(c[hungarian_algorithm(c)]))(costs)
    np.testing.assert_array_equal(found, np.eye(2))


@pytest.mark.parametrize("shape", [(3,), (2, 2, 2)], ids=str)
def test_what_is_no_matrix(shape):
    with pytest.raises(ValueError, match=r"`cost_matrix` has shape .*`jax.vmap`"):
        hungarian_algorithm(jnp.ones(shape))


def test_what_has_no_order():
    with pytest.raises(ValueError, match="`cost_matrix` is complex"):
        base_hungarian_algorithm(jnp.ones((2, 2), jnp.complex64))
