"""Zero gradients give finite steps, and finite derivatives by the learning rate."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import make, rows
from keywords import keywords

import stepax
from stepax import contrib


def constant(value):
    return {"w": jnp.full((4, 3), value), "b": jnp.full(3, value)}


def steps(tx, p, times, is_flat):
    """The updates of some steps down zero, or down |p|²/2 where p is zero."""
    state, updates = tx.init(p), []
    for _ in range(times):
        g = jax.tree.map(lambda x: 0 * x if is_flat else x, p)
        u, state = tx.update(g, state, p, **keywords(g))
        p = jax.tree.map(jnp.add, p, u)
        updates.append(u)
    return updates, state


def all_finite(tree):
    xs = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
    return all(jnp.isfinite(x).all() for x in xs)


@pytest.mark.few(2)
@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("row", rows(kind="optimizer"))
def test_constants_that_xla_knows_are_finite(row, value):
    """The compiler knows all values, and calculates with constants by other rules."""
    tx = stepax.with_extra_args_support(make(row))
    assert all_finite(jax.jit(lambda: steps(tx, constant(value), 2, True))())


@pytest.mark.few(2)
@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("row", rows("learning_rate"))
def test_the_derivative_by_the_learning_rate_is_finite(row, value):
    def updates(rate):
        tx = stepax.with_extra_args_support(make(row, learning_rate=rate))
        return steps(tx, constant(value), 2, value == 1)[0]

    rate = jnp.float32(0.1)
    assert all_finite(jax.jit(jax.jacfwd(updates))(rate))
    assert all_finite(jax.jit(jax.jacrev(updates))(rate))


def test_constants_beside_tiny_gradients_are_finite():
    """In MuOwn, the square of a constant 0 was multiplied by that of 1e30."""

    def step(g):
        p = {"w": jnp.ones((4, 3))}
        tx = contrib.muown(0.1)
        return tx.update({"w": g}, tx.init(p), p)

    assert all_finite(jax.jit(step)(jnp.full((4, 3), 1e-30)))


@pytest.mark.slow
def test_shampoo_has_the_derivative_of_differences(x64):
    random = np.random.default_rng(0)
    p, g, along = (jnp.asarray(random.normal(size=(4, 3))) for _ in range(3))
    tx = stepax.contrib.shampoo(0.1, eps=1e-3)

    def update(g):
        return tx.update(g, tx.init(p), p)[0]

    _, slope = jax.jvp(update, (g,), (along,))
    h = 1e-5
    wanted = (update(g + h * along) - update(g - h * along)) / (2 * h)
    np.testing.assert_allclose(slope, wanted, rtol=1e-6, atol=1e-8)
