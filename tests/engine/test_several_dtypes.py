"""Trees in single and in double: what scales one precision need not fit the other."""

import inspect
import itertools as it

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import make, rows
from keywords import keywords

import stepax


DTYPES = ["bfloat16", "float32", "complex64", "float64", "complex128"]
PAIRS = [f"{a}, {b}" for a, b in it.permutations(DTYPES, 2)]
SCALES = [0.0, 1e-30, 1e-25, 1.0, 1e25, 1e30]


def pair(dtypes: str, scale: float, other: float):
    a, b = dtypes.split(", ")
    return {"a": jnp.full(3, scale, a), "b": jnp.full((2, 2), other, b)}


@pytest.mark.few(4)
@pytest.mark.parametrize("dtypes", PAIRS)
def test_a_norm_is_that_of_all_numbers(dtypes, x64):
    for tree in (pair(dtypes, *x) for x in it.product(SCALES, SCALES)):
        exact = [np.asarray(x, np.complex128).ravel() for x in tree.values()]
        wanted = np.linalg.norm(np.concatenate(exact))
        for norm in (stepax.tree.norm, jax.jit(stepax.tree.norm)):
            np.testing.assert_allclose(norm(tree), wanted, rtol=1e-6)


@pytest.mark.few(4)
@pytest.mark.parametrize("dtypes", PAIRS)
def test_a_norm_has_finite_derivatives(dtypes, x64):
    for scale, other in it.product([0.0, 1e-25, 1.0, 1e4], repeat=2):
        tree = pair(dtypes, scale, other)
        found = jax.grad(lambda tree: stepax.tree.norm(tree).astype(float))(tree)
        length = stepax.tree.norm(tree)
        for k, g in found.items():
            slope = np.asarray(tree[k], complex) / np.where(length > 0, length, 1)
            np.testing.assert_allclose(np.asarray(g, complex), slope.conj(), rtol=0.01)


@pytest.mark.few(3)
@pytest.mark.parametrize("row", rows())
def test_gradients_of_zero_do_the_same_in_each_precision(row, x64):
    def steps(dtype):
        p = {"a": jnp.arange(1.0, 4.0), "b": jnp.ones((2, 3), dtype)}
        g = jax.tree.map(jnp.zeros_like, p)
        tx = make(row)
        _, state = tx.update(g, tx.init(p), p, **keywords(g))
        return tx.update(g, state, p, **keywords(g))[0]

    found, wanted = steps("float32"), steps("float64")
    is_random = {"key", "seed"} & inspect.signature(row.factory).parameters.keys()
    for x, y in zip(*map(jax.tree.leaves, (found, wanted)), strict=True):
        assert np.isfinite(x).all()
        if not is_random:
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)
