"""What users ask for before they train: a learning rate, found by trying many."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from library import optax
from runs import compilations


row = pytest.mark.row
RATES = np.geomspace(1e-2, 10, 10)


def loss(params, key):
    return jnp.sum((params - 1 + 0.01 * jax.random.normal(key, (2,))) ** 2)


@row("a sweep over learning rates", optax="fails")
def test_all_rates_and_seeds_are_one_program():
    # Lightning-AI/pytorch-lightning#1347, elixir-nx/axon#675
    init = lambda key: jax.random.normal(key, (2,))
    with compilations() as found:
        optax.sweep(loss, init, optax.sgd, {"learning_rate": RATES}, 20, seeds=3)
    assert len(found) == 1


@row("a sweep over learning rates", optax="fails")
def test_a_rate_is_suggested_although_others_diverge():
    # Lightning-AI/pytorch-lightning#1347, pytorch/pytorch#21264
    init = lambda key: jax.random.normal(key, (2,))
    grid = {"learning_rate": RATES}
    result = optax.sweep(loss, init, optax.sgd, grid, 40, bound=1e6)
    # A step of a rate above one goes farther than it came.
    assert result.diverged.any() and (result.diverged[:, 0] == (RATES > 1)).all()
    assert result.suggestion["learning_rate"] in RATES[RATES <= 1]
