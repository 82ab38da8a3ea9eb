"""What says nothing has no influence: a missing gradient, a loss that is not finite."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import make, rows
from inside import node_of
from keywords import keywords
from test_zero_gradients import all_finite

import stepax


P = {"w": jnp.linspace(-1, 1, 12).reshape(4, 3), "b": jnp.ones(3)}


def steps(tx, p, gs, values):
    """The updates of some steps, and the last state."""
    tx = stepax.with_extra_args_support(tx)

    @jax.jit
    def step(g, state, value):
        return tx.update(g, state, p, **(keywords(g) | {"value": value}))

    state, found = tx.init(p), []
    for g, value in zip(gs, values, strict=True):
        u, state = step(g, state, jnp.float32(value))
        found.append(u)
    return found, state


def gradients(p, n):
    return [jax.tree.map(lambda x, i=i: x * 0.5 + 0.1 * i, p) for i in range(1, n + 1)]


@pytest.mark.few(2)
@pytest.mark.parametrize("row", rows(kind="optimizer"))
def test_a_parameter_without_a_gradient_changes_no_step_of_others(row):
    """To rounding: sums over all parameters are taken in another order."""
    gs, values = gradients(P, 3), [1.0] * 3
    wanted, _ = steps(make(row), P, gs, values)
    more = P | {"z": jnp.full((4, 3), 100.0)}
    found, _ = steps(make(row), more, [g | {"z": None} for g in gs], values)
    for u, v in zip(found, wanted, strict=True):
        assert u.pop("z") is None
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, 1e-4, 1e-7), u, v)


def reads_value(row):
    return "value" in (node_of(make(row.values[0])).keywords() or ())


@pytest.mark.few(12)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("row", [x for x in rows() if reads_value(x)])
def test_a_loss_that_is_not_finite_is_forgotten(row, bad, first):
    """With finite gradients, the next steps and the state are finite."""
    values = [bad, 1.0, 1.0, 1.0] if first else [1.0, bad, 1.0, 1.0]
    found, state = steps(make(row), P, gradients(P, 4), values)
    assert all_finite(found[2:])
    assert all_finite(state)
    assert any(jnp.any(x != 0) for x in jax.tree.leaves(found[3]))
