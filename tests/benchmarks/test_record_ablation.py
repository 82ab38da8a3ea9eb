"""The parts of modded-nanogpt's records that are compared on the text task."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stepax
from benchmarks import record_parts


POINT = {"one_minus_b1": 0.1, "one_minus_b2": 0.1, "decay": 0.001}


def _after(part, steps=40):
    key = jax.random.key(0)
    # Of a size at which updates are below their floors, and gradients that let it grow.
    p = {"w": 5 * jax.random.normal(key, (3, 4)), "scale": jnp.ones(3)}
    tx = record_parts.optimizer(part, 0.1, POINT, steps)
    state, update = tx.init(p), jax.jit(tx.update)
    for _ in range(steps):
        u, state = update(jax.tree.map(jnp.negative, p), state, p)
        p = stepax.apply_updates(p, u)
    return stepax.averaged_params(state, p, blend=0.6) if part == "blend" else p


@pytest.mark.few(1)
@pytest.mark.parametrize("part", [x for x in record_parts.PARTS if x != "base"])
def test_a_part_changes_the_matrices(part):
    with_part, without = _after(part)["w"], _after("base")["w"]
    assert np.isfinite(with_part).all()
    assert not np.allclose(with_part, without)


def test_the_table_compares_seed_by_seed():
    tuning = [3.0, 3.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 3.0, 3.0]
    row = {"tuning": tuning, "seeds": [1.0, 2.0, 3.0]}
    found = {part: row for part in record_parts.PARTS}
    found["brake"] = row | {"seeds": [0.5, 1.5, 2.5]}
    lines = record_parts.table(found)
    assert lines[2] == "| nothing else | 0.63 | 2.0000 |  |"
    assert "| radial brake, 0.5 | 0.63 | 1.5000 | -0.5000 ± 0.0000 |" in lines
