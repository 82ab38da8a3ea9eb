"""A narrow dtype of a moment keeps imaginary parts: complex64 is the narrowest."""

import jax.numpy as jnp
import pytest
from cases import gradients, make, rows
from compare import assert_equal


NAMES = ("mu_dtype", "accumulator_dtype", "dtype_momentum")
CASES = {
    f"{x.id}-{name}": (x.values[0], name)
    for name in NAMES
    for x in rows(takes=name, holomorphic=True)
}


@pytest.mark.thinned
@pytest.mark.parametrize(("row", "name"), CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_real_dtype_of_a_moment_drops_no_imaginary_part(row, name, dtype):
    p = {"w": jnp.full((4, 3), 1 + 2j, jnp.complex64)}
    found = []
    for tx in make(row, **{name: dtype}), make(row, **{name: "complex64"}):
        state, x = tx.init(p), p
        for t in range(3):
            updates, state = tx.update(gradients(p, t), state, x)
            x = {"w": x["w"] + updates["w"]}
        found.append((x, state))
    assert_equal(*found)
