"""Perturbed functions: the numbers of Optax, and the derivatives of the mean."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stepax import perturbations as ours


KEY = jax.random.key(0)
X = jnp.array([0.0, 0.5, -0.3])
NOISES = ["Gumbel", "Normal"]


def total(x):
    return jnp.sum(jnp.maximum(x, 0.0))


def largest(tree):
    return jax.tree.map(lambda x: jax.nn.one_hot(jnp.argmax(x), x.size), tree)


def both(fun, noise="Gumbel", **options):
    theirs = optax.perturbations
    return (
        ours.make_perturbed_fun(fun, 8, 0.3, getattr(ours, noise)(), **options),
        theirs.make_perturbed_fun(fun, 8, 0.3, getattr(theirs, noise)(), **options),
    )


@pytest.mark.slow
@pytest.mark.parametrize("use_baseline", [True, False])
@pytest.mark.parametrize("noise", NOISES)
def test_value_and_derivatives_are_optaxs_for_the_same_key(noise, use_baseline):
    mine, theirs = both(total, noise, use_baseline=use_baseline)
    assert mine(KEY, X) == theirs(KEY, X)
    # The score has a few more roundings there; second derivatives cancel.
    for d, rtol in (jax.grad, 1e-5), (jax.hessian, 1e-4):
        found, wanted = d(mine, 1)(KEY, X), d(theirs, 1)(KEY, X)
        np.testing.assert_allclose(found, wanted, rtol=rtol, atol=1e-4)


@pytest.mark.few(1)
def test_trees_draw_the_bits_of_optax():
    mine, theirs = both(largest)
    tree = {"a": X, "b": jnp.array([1.0, 2.0]), "none": None}
    found, wanted = jax.jit(mine)(KEY, tree), jax.jit(theirs)(KEY, tree)
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


@pytest.mark.parametrize("noise", NOISES)
def test_samples_and_densities_are_those_of_the_distribution(noise):
    mine = getattr(ours, noise)()
    np.testing.assert_array_equal(
        mine.sample(KEY, (3,)), getattr(optax.perturbations, noise)().sample(KEY, (3,))
    )
    x = jnp.linspace(-3.0, 12.0, 15001)
    mass = jnp.sum(jnp.exp(mine.log_prob(x))) * 1e-3
    wanted = {"Gumbel": 1.0, "Normal": math.sqrt(2 * math.pi)}[noise]
    assert mass == pytest.approx(wanted, rel=2e-3)  # the tails that are left out


@pytest.mark.slow
def test_the_mean_over_samples_is_the_soft_maximum():
    """With Gumbel noise the mean of the arg max is the softmax of x / σ."""
    f = ours.make_perturbed_fun(largest, 20_000, 0.5)
    wanted = lambda x: jax.nn.softmax(x / 0.5)
    # The standard error of a mean of 20,000 indicators is below 0.004.
    np.testing.assert_allclose(f(KEY, X), wanted(X), atol=0.016)
    jacobians = jax.jacobian(f, 1)(KEY, X), jax.jacobian(wanted)(X)
    np.testing.assert_allclose(*jacobians, atol=0.08)


@pytest.mark.slow
def test_sigma_has_a_derivative_too():
    """E (x + σ z)² = x² + σ² for normal noise, so that its derivative is 2 σ."""

    def mean(sigma):
        square = lambda x: jnp.square(x)
        f = ours.make_perturbed_fun(square, 50_000, sigma, ours.Normal())
        return f(KEY, jnp.float32(0.0))

    assert jax.grad(mean)(jnp.float32(1.5)) == pytest.approx(3.0, rel=0.05)


@pytest.mark.slow
def test_narrow_inputs_score_the_noise_itself():
    step = lambda x: jnp.sum((x > 0).astype(jnp.float32))
    f = ours.make_perturbed_fun(step, 4000, 1e-3, ours.Normal())
    # 1 + σ z is nearly always 1 in bfloat16: the score of that would be 0.
    wide = jax.grad(f, 1)(KEY, jnp.zeros(3))
    narrow = jax.grad(f, 1)(KEY, jnp.zeros(3, jnp.bfloat16))
    assert narrow.dtype == jnp.bfloat16
    np.testing.assert_allclose(narrow.astype(jnp.float32), wide, rtol=0.2)


@pytest.mark.slow
def test_results_that_are_integers_are_averaged():
    f = ours.make_perturbed_fun(jnp.argmax, 4, 0.5)
    assert f(KEY, X).dtype == jnp.float32


WRONG = {
    "`num_samples` is 0": lambda: ours.make_perturbed_fun(total, 0),
    "`sigma` is 0.0, expected above 0": lambda: ours.make_perturbed_fun(
        total, sigma=0.0
    ),
    r"the input at \['i'\] is of dtype int32": lambda: ours.make_perturbed_fun(total)(
        KEY, {"i": jnp.arange(3)}
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_calls(message):
    with pytest.raises(ValueError, match=message):
        WRONG[message]()
