"""Injected hyperparameters of single parameters where JAX's default is double."""

import jax
import jax.numpy as jnp
import pytest
from cases import rows
from injection import arguments, inject
from keywords import keywords


CHOSEN = [x for x in rows() if x.values[0].kind != "wrapper"]


@pytest.mark.slow
@pytest.mark.parametrize("row", CHOSEN)
def test_single_parameters_take_injected_numbers_in_x64(row, x64):
    params = {"w": jnp.ones((2, 3), jnp.float32)}
    tx = inject(row.factory)(**arguments(row))
    with jax.disable_jit():
        state = tx.init(params)
        updates, state = tx.update(params, state, params, **keywords(params))
    assert updates["w"].dtype == jnp.float32
