"""Arithmetic is done in float32 or wider, and rounded once per pass."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import stepax


def exact(x):
    return np.asarray(x, np.float64)


def run(tx, p, gs):
    """The updates of a sequence of gradients, as float64."""

    def step(state, g):
        u, state = tx.update(g, state, p)
        return state, u

    return exact(jax.jit(lambda s: jax.lax.scan(step, s, gs))(tx.init(p))[1])


CHAINS = {
    "adamw": lambda lib: lib.adamw(1e-2),
    "clipped": lambda lib: lib.chain(lib.clip_by_global_norm(1.0), lib.adamw(1e-2)),
    "momentum": lambda lib: lib.sgd(1e-2, momentum=0.9, nesterov=True),
    "lion": lambda lib: lib.lion(1e-2),
    "rmsprop": lambda lib: lib.rmsprop(1e-2, momentum=0.9),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", CHAINS)
def test_narrow_dtypes_are_nearer_to_the_truth_than_optax(name, dtype, x64):
    gs = np.random.RandomState(0).randn(20, 50)
    p = np.random.RandomState(1).randn(50)
    narrow = jnp.asarray(p, dtype), jnp.asarray(gs, dtype)
    with jax.numpy_dtype_promotion("standard"):
        truth = run(CHAINS[name](optax), jnp.asarray(p), jnp.asarray(gs))
        theirs = run(CHAINS[name](optax), *narrow)
    ours = run(CHAINS[name](stepax), *narrow)
    # Rounding of gradients and of stored moments is common to both; the median is
    # taken because the sign in Lion makes single numbers all or nothing.
    assert np.median(abs(ours - truth)) <= np.median(abs(theirs - truth))


def test_a_pass_rounds_once():
    # 1 + 2^-9 is no bfloat16: rounding between the members would lose the tail.
    tx = stepax.chain(
        stepax.scale(1 + 2.0**-9), stepax.scale(1 + 2.0**-9), stepax.scale(2.0**9)
    )
    x = jnp.ones(1, jnp.bfloat16)
    u, _ = tx.update(x, tx.init(x))
    assert float(u[0]) == float(jnp.bfloat16((1 + 2.0**-9) ** 2 * 2.0**9))


def test_double_precision_parameters_keep_it_with_single_gradients(x64):
    tx = stepax.scale_by_adam()
    p = jnp.ones(3, jnp.float64)
    g = jnp.full(3, 0.1, jnp.float32)
    _, state = tx.update(g, tx.init(p))
    expected = (1 - 0.999) * exact(g) ** 2
    np.testing.assert_allclose(state.nu, expected, rtol=1e-15)


@pytest.mark.few(1)
@pytest.mark.parametrize("rate", [np.float32(0.1), np.float64(0.1), 0.1])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_the_type_of_the_rate_does_not_change_that_of_the_update(rate, dtype):
    p = jnp.ones(3, dtype)
    for tx in (stepax.sgd(rate), stepax.adam(rate), stepax.adam(lambda count: rate)):
        u, _ = tx.update(p, tx.init(p), p)
        assert u.dtype == p.dtype


def test_the_second_moment_of_complex_gradients_is_real():
    tx = stepax.scale_by_adam()
    g = jnp.asarray([3 + 4j], jnp.complex64)
    u, state = tx.update(g, tx.init(g))
    np.testing.assert_allclose(state.nu, 0.001 * 25, rtol=1e-6)
    assert state.nu.dtype == jnp.complex64  # as Optax stores it
    np.testing.assert_allclose(u, (3 + 4j) / 5, rtol=1e-5)


def test_numbers_beside_no_parameters_have_the_default_dtype(x64):
    tx = stepax.inject_hyperparams(stepax.sgd)(learning_rate=0.1)
    nothing = stepax.masked(tx, {"w": False}).init({"w": jnp.ones(2)})
    assert stepax.tree.get(nothing, "learning_rate").dtype == jnp.float64
    narrow = tx.init({"w": jnp.ones(2, jnp.float32)})
    assert stepax.tree.get(narrow, "learning_rate").dtype == jnp.float32
