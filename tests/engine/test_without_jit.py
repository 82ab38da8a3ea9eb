"""Everything works where `jit` is turned off to debug, also on Python's numbers."""

import jax
import jax.numpy as jnp
import pytest
from cases import make, rows, types
from keywords import keywords

import stepax


@pytest.mark.few(1)
@pytest.mark.parametrize("row", rows())
def test_python_numbers_are_parameters_without_jit(row):
    tx, params, gradient = make(row), {"k": 0.5}, {"k": 0.25}
    with jax.disable_jit():
        state = first = tx.init(params)
        for _ in range(2):
            updates, state = tx.update(gradient, state, params, **keywords(gradient))
            assert jnp.isfinite(stepax.apply_updates(params, updates)["k"])
    assert types(state) == types(first)


TREES = {
    "apply_updates": lambda x: stepax.apply_updates(x, x),
    "bias_correction": lambda x: stepax.tree.bias_correction(x, 0.9, 3),
    "incremental_update": lambda x: stepax.incremental_update(x, x, 0.1),
    "periodic_update": lambda x: stepax.periodic_update(x, x, 3, 3),
}


@pytest.mark.parametrize("f", TREES.values(), ids=TREES)
def test_trees_of_python_numbers_are_moved_without_jit(f):
    wanted = f({"k": 0.5})
    with jax.disable_jit():
        found = f({"k": 0.5})
    assert types(found) == types(wanted)
    assert jnp.allclose(found["k"], wanted["k"])
