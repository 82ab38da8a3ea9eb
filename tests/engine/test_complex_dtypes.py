"""A real dtype of a moment, beside complex parameters: no part is lost silently."""

import jax
import jax.numpy as jnp
import pytest
from cases import gradients, make, rows


NAMES = ("mu_dtype", "accumulator_dtype", "dtype_momentum")
CASES = {
    f"{x.id}-{name}": (x.values[0], name)
    for name in NAMES
    for x in rows(takes=name, holomorphic=True)
}


@pytest.mark.thinned
@pytest.mark.parametrize(("row", "name"), CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_real_dtype_of_a_moment_loses_no_imaginary_part_silently(row, name, dtype):
    p = {"w": jnp.full((4, 3), 1 + 2j, jnp.complex64)}
    tx = make(row, **{name: dtype})
    state = tx.init(p)
    if dtype not in {str(x.dtype) for x in jax.tree.leaves(state)}:
        u, _ = tx.update(gradients(p, 0), state, p)  # no such moment by default
        assert jnp.all(jnp.imag(u["w"]) != 0)
        return
    with pytest.raises(ValueError, match=r"for the gradient at \['w'\]; .* or none"):
        tx.update(gradients(p, 0), state, p)


@pytest.mark.few(2)
@pytest.mark.parametrize(("row", "name"), CASES.values(), ids=CASES.keys())
def test_a_complex_dtype_of_a_moment_is_that_of_none(row, name):
    p = {"w": jnp.full((4, 3), 1 + 2j, jnp.complex64)}
    for t in range(3):
        g = gradients(p, t)
        found = [
            tx.update(g, tx.init(p), p)
            for tx in (make(row, **{name: "complex64"}), make(row))
        ]
        for x, y in zip(*map(jax.tree.leaves, found), strict=True):
            assert jnp.array_equal(x, y)
