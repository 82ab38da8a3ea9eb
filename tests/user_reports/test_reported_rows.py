"""What users report of the states of large tables, and of parts of a state."""

import jax
import jax.numpy as jnp
import pytest
from library import optax


row = pytest.mark.row


def table(*rows):
    """Parameters, and gradients of these rows alone."""
    p = {"embed": jnp.ones((6, 4))}
    g = jnp.zeros((6, 4)).at[jnp.array(rows)].set(0.5)
    return p, {"embed": g}


@pytest.mark.slow
@row("Rows of embeddings", optax="fails")
@pytest.mark.parametrize("optimizer", ["adam", "adamw", "rmsprop", "lion"])
def test_rows_without_a_gradient_are_left_alone(optimizer):
    # keras-team/keras#19992, pytorch/pytorch#18404
    tx = optax.contrib.lazy_rows(getattr(optax, optimizer)(0.1))
    p, g = table(0, 1)
    _, state = tx.update(g, tx.init(p), p)
    p, g = table(1, 2)
    u, new = tx.update(g, state, p)
    assert not u["embed"][0].any() and u["embed"][1:3].all()
    for was, now in zip(*map(jax.tree.leaves, (state, new)), strict=True):
        assert was.shape != (6, 4) or (was[0] == now[0]).all()


@row("Rows of embeddings", optax="fails")
def test_a_table_may_keep_a_number_for_each_row():
    p, g = table(0, 1)
    tx = optax.contrib.row_states(optax.adagrad(0.1))
    _, state = tx.update(g, tx.init(p), p)
    assert sum(x.size for x in jax.tree.leaves(state)) == 6


@row("Rows of embeddings", optax="fails")
def test_a_part_of_a_state_starts_again():
    # pytorch/pytorch#37410
    tx = optax.adam(0.1)
    p, g = table(0, 1)
    _, state = tx.update(g, tx.init(p), p)
    new = optax.tree.reset(tx, state, p, where="mu/**")
    assert not optax.tree.get(new, "mu")["embed"].any()
    assert optax.tree.get(new, "nu")["embed"].any()
