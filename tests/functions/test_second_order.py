"""Second derivatives of a loss: products, diagonals, Fisher information."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from stepax import second_order as ours


pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")

PARAMS = {"w": jnp.array([[1.0, 2.0], [3.0, 4.0]]) / 4, "b": jnp.array([0.1, 0.2])}
INPUTS = jnp.linspace(-1.0, 1.0, 6).reshape(3, 2)
TARGETS = jnp.ones((3, 2))
DATA = PARAMS, INPUTS, TARGETS


def loss(params, inputs, targets):
    found = jnp.tanh(inputs @ params["w"] + params["b"][None])
    return jnp.mean(jnp.square(found - targets))


def hessian():
    flat, unravel = ravel_pytree(PARAMS)
    return jax.hessian(lambda p: loss(unravel(p), INPUTS, TARGETS))(flat)


@pytest.mark.slow
def test_a_product_is_with_the_whole_hessian():
    v = jnp.arange(6.0)
    found = ours.hvp(loss, v, *DATA)
    assert jax.tree.structure(found) == jax.tree.structure(PARAMS)
    # Sums of a dozen products, in another order.
    np.testing.assert_allclose(ravel_pytree(found)[0], hessian() @ v, rtol=1e-5)
    _, unravel = ravel_pytree(PARAMS)
    again = ours.hvp(loss, unravel(v), *DATA)
    jax.tree.map(np.testing.assert_array_equal, found, again)


@pytest.mark.slow
def test_diagonals_are_those_of_the_matrices():
    diagonal = ours.hessian_diag(loss, *DATA)
    np.testing.assert_allclose(diagonal, np.diag(hessian()), rtol=1e-5)
    gradient = ravel_pytree(jax.grad(loss)(*DATA))[0]
    np.testing.assert_allclose(ours.fisher_diag(loss, *DATA), gradient**2, rtol=1e-6)


def test_products_are_with_the_whole_matrices():
    flat, unravel = ravel_pytree(PARAMS)

    def outputs(params):
        return {"out": jnp.tanh(INPUTS @ params["w"] + params["b"][None])}

    def curved(out):  # with a Hessian that mixes the outputs
        return jax.nn.logsumexp(out["out"]) + jnp.mean(out["out"] ** 2)

    vector = lambda p: outputs(unravel(p))["out"].reshape(-1)
    j = jax.jit(jax.jacobian(vector))(flat)
    hessian = jax.hessian(lambda y: curved({"out": y.reshape(3, 2)}))
    h = jax.jit(hessian)(vector(flat))
    v = jnp.arange(6.0)
    for given in (v, unravel(v)):
        product = lambda v: ours.ggn_product(outputs, curved, PARAMS, v)
        found = jax.jit(product)(given)
        assert jax.tree.structure(found) == jax.tree.structure(PARAMS)
        # Sums of a dozen products, in another order.
        np.testing.assert_allclose(ravel_pytree(found)[0], j.T @ h @ j @ v, rtol=1e-4)

    def losses(params):
        return jnp.sum((outputs(params)["out"] - TARGETS) ** 2, axis=1)

    g = jax.jit(jax.jacobian(lambda p: losses(unravel(p))))(flat)
    found = jax.jit(lambda v: ours.fisher_product(losses, PARAMS, v))(unravel(v))
    np.testing.assert_allclose(ravel_pytree(found)[0], g.T @ g @ v / 3, rtol=1e-5)
    with pytest.raises(ValueError, match="expected a tree like `params`"):
        ours.ggn_product(outputs, curved, PARAMS, jnp.ones(3))


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["hvp", "hessian_diag", "fisher_diag"])
def test_agrees_with_optax(name):
    args = (loss, jnp.arange(6.0), *DATA) if name == "hvp" else (loss, *DATA)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # theirs will be removed
        wanted = jax.jit(lambda: getattr(optax.second_order, name)(*args))()
    found = jax.jit(lambda: getattr(ours, name)(*args))()
    close = lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5)
    jax.tree.map(close, found, wanted)


def test_no_square_of_the_parameters_is_held():
    big = jnp.ones(2000)
    cube = lambda p, x, y: jnp.sum(p * p * p)
    run = jax.jit(lambda p: ours.hessian_diag(cube, p, None, None))
    memory: Any = run.lower(big).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 100 * big.nbytes
    np.testing.assert_allclose(run(big), 6 * big)


def test_a_vector_that_does_not_fit():
    with pytest.raises(ValueError, match=r"`v` is \(5,\), expected .* shape \(6,\)"):
        ours.hvp(loss, jnp.arange(5.0), *DATA)
    with pytest.raises(ValueError, match="`v` is dict, expected a tree like `params`"):
        ours.hvp(loss, {"w": PARAMS["w"]}, *DATA)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["fisher_diag", "hessian_diag"])
def test_they_are_deprecated(name):
    with pytest.warns(DeprecationWarning, match=f"`{name}` is deprecated .* use `j"):
        getattr(ours, name)(loss, *DATA)
    with pytest.warns(DeprecationWarning, match="use `jax.jvp"):
        ours.hvp(loss, jnp.ones(6), *DATA)
