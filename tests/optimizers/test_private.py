"""Differentially private gradients: against the paper, and against Optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stepax.contrib import differentially_private_aggregate, dpsgd


P = {"w": jnp.zeros((2, 3)), "b": jnp.zeros(())}


def examples(n=4, lead=()):
    random = np.random.default_rng(0)
    size = np.exp(random.normal(size=(*lead, n)))  # some clipped, some not
    w, b = random.normal(size=(*lead, n, 2, 3)), random.normal(size=(*lead, n))
    g = {"w": w * size[..., None, None], "b": b * size}
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), g)


def test_clipped_examples_are_averaged():
    """Abadi et al., Algorithm 1, without noise."""
    g = jax.tree.map(np.asarray, examples())
    norms = np.sqrt(np.sum(g["w"] ** 2, (1, 2)) + g["b"] ** 2)
    factor = 1 / np.maximum(1, norms / 2.0)
    assert 0 < np.sum(factor < 1) < 4
    tx = differentially_private_aggregate(2.0, 0.0, 0)
    found, _ = tx.update(examples(), tx.init(P), P)
    expected = {k: np.tensordot(factor, x, 1) / 4 for k, x in g.items()}
    for key, x in expected.items():
        np.testing.assert_allclose(found[key], x, rtol=1e-6)


def test_the_noise_has_the_right_size_and_is_fresh():
    """Its deviation is noise_multiplier l2_norm_clip / examples, here 1.5 = 3 · 2 / 4.

    The deviation of 20,000 numbers is known to 1 / sqrt(40,000) = 0.5 percent.
    """
    p = {"x": jnp.zeros(10_000), "y": jnp.zeros(10_000)}
    g = jax.tree.map(lambda x: jnp.zeros((4, *x.shape)), p)
    tx = differentially_private_aggregate(2.0, 3.0, 1)
    u, state = tx.update(g, tx.init(p), p)
    v, _ = tx.update(g, state, p)
    assert abs(np.std([u["x"], u["y"]]) / 1.5 - 1) < 0.03
    for x, y in [(u["x"], u["y"]), (u["x"], v["x"])]:
        assert abs(np.corrcoef(x, y)[0, 1]) < 0.05


def drive(tx, gs):
    def step(state, g):
        updates, state = tx.update(g, state, P)
        return state, updates

    run = jax.jit(lambda gs: jax.lax.scan(step, tx.init(P), gs))
    state, updates = run(gs)
    return jax.tree.leaves(updates), jax.tree.leaves(state)


OPTIONS = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9, "nesterov": True},
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", OPTIONS)
def test_updates_are_those_of_optax(name):
    gs = examples(lead=(200,))
    rate = lambda count: 1 / (10.0 + count)
    found = drive(dpsgd(rate, 1.0, 0.5, key=3, **OPTIONS[name]), gs)
    with jax.numpy_dtype_promotion("standard"), pytest.deprecated_call():
        theirs = optax.contrib.dpsgd(rate, 1.0, 0.5, 3, **OPTIONS[name])
        expected = drive(theirs, gs)
    plain = lambda x: (
        jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    )
    for x, y in zip(found[1], expected[1], strict=True):
        assert x.dtype == y.dtype and x.shape == y.shape
    np.testing.assert_array_equal(plain(found[1][0]), plain(expected[1][0]))
    for x, y in zip(found[0], expected[0], strict=True):
        # Optax divides by the norm where we multiply by the bound over it, for two
        # roundings of an example, of which there are four; momentum adds up ten steps.
        atol = 2.0**-23 * float(jnp.max(jnp.abs(y)))
        np.testing.assert_allclose(x, y, rtol=0, atol=4 * atol)


def test_keys_in_all_forms_are_one():
    def draw(key):
        tx = differentially_private_aggregate(1.0, 1.0, key)
        return tx.update(examples(), tx.init(P), P)[0]["w"]

    for key in (jnp.int32(5), jax.random.key(5), jax.random.PRNGKey(5)):
        np.testing.assert_array_equal(draw(key), draw(5))
    for same in (dpsgd(1.0, 1.0, 1.0, None, key=5), dpsgd(1.0, 1.0, 1.0, key=5)):
        u, _ = same.update(examples(), same.init(P), P)
        np.testing.assert_array_equal(u["w"], -draw(5))


def test_the_callers_key_outlives_a_donated_state():
    key = jax.random.key(0)
    tx = differentially_private_aggregate(1.0, 1.0, key)
    jax.jit(lambda s: tx.update(examples(), s, P), donate_argnums=0)(tx.init(P))
    assert (jax.random.key_data(key) == jax.random.key_data(jax.random.key(0))).all()


def test_leaves_without_a_gradient_pass():
    nothing = np.zeros((4, 2), jax.dtypes.float0)
    g = {**examples(), "none": None, "n": nothing}
    p = {**P, "none": None, "n": jnp.arange(2)}
    tx = dpsgd(0.1, 1.0, 0.5, key=0)
    for update in (tx.update, jax.jit(tx.update)):
        u, _ = update(g, tx.init(p), p)
        assert u["none"] is None and jnp.isfinite(u["w"]).all()
        assert u["n"].shape == (2,) and u["n"].dtype == jax.dtypes.float0
    for empty in ({}, {"none": None}):
        assert tx.update(empty, tx.init(empty), empty)[0] == empty


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_narrow_sums_are_taken_in_float32(dtype):
    """4,096 examples of 1: bfloat16 would stop at 256, float16 at 2,048."""
    p, g = {"w": jnp.zeros(1, dtype)}, {"w": jnp.ones((4096, 1), dtype)}
    tx = differentially_private_aggregate(1.0, 0.0, 0)
    u, _ = tx.update(g, tx.init(p), p)
    assert u["w"].dtype == dtype
    np.testing.assert_allclose(u["w"].astype(jnp.float32), [1.0], rtol=1e-3)


def test_complex_gradients_keep_their_phase():
    g = {"z": jnp.asarray([[3 + 4j], [0.3 + 0.4j]], jnp.complex64)}
    tx = differentially_private_aggregate(1.0, 0.0, 0)
    u, _ = tx.update(g, tx.init(g), g)
    np.testing.assert_allclose(u["z"], [0.45 + 0.6j], rtol=1e-6)


def test_complex_noise_has_the_deviation_in_each_part():
    """Known to 1 / sqrt(20,000) = 0.7 percent."""
    g = {"z": jnp.zeros((1, 10_000), jnp.complex64)}
    tx = differentially_private_aggregate(1.0, 1.0, 0)
    u, _ = tx.update(g, tx.init(g), g)
    for x in (u["z"].real, u["z"].imag):
        assert abs(np.std(x) - 1) < 0.03


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="both `key` and `seed` are given"):
        differentially_private_aggregate(1.0, 1.0, 0, seed=0)
    with pytest.warns(DeprecationWarning, match="`seed` is deprecated.*`key`"):
        differentially_private_aggregate(1.0, 1.0, seed=0)
    with pytest.warns(UserWarning, match="`key` will be required"):
        differentially_private_aggregate(1.0, 1.0)
    for seed in (None, 1):
        with pytest.raises(ValueError, match="give one of `seed` and `key`"):
            dpsgd(1.0, 1.0, 1.0, seed, key=seed)
    for given in ((-1.0, 1.0), (1.0, -1.0)):
        with pytest.raises(
            ValueError, match="`(l2_norm_clip|noise_multiplier)` must be >= 0"
        ):
            differentially_private_aggregate(*given, 0)


BATCHES = {
    "no axis": ({"b": (), "w": (2,)}, r"\['b'\] has shape \(\).*has none"),
    "differ": ({"b": (3,), "w": (2, 4)}, r"\['w'\] has shape \(2, 4\).*\['b'\] has 3"),
    "none": ({"b": (0,), "w": (0, 4)}, r"\['b'\] has shape \(0,\)"),
}


@pytest.mark.parametrize("case", BATCHES)
def test_the_first_axes_must_count_the_same_examples(case):
    shapes, message = BATCHES[case]
    g = {k: jnp.ones(shape) for k, shape in shapes.items()}
    tx = dpsgd(0.1, 1.0, 1.0, key=0)
    with pytest.raises(ValueError, match=f"the gradient at {message}.*`jax.vmap`"):
        tx.update(g, tx.init(g), g)


def test_private_descent_learns():
    """A mean of examples at 1, to within the noise of a tenth of a step of 0.1."""
    loss = lambda p, x: jnp.square(p - x)

    def step(carry, _):
        p, state = carry
        g = jax.vmap(jax.grad(loss), (None, 0))(p, jnp.ones(16))
        u, state = tx.update(g, state, p)
        return (p + u, state), None

    tx = dpsgd(0.1, 1.0, 0.1, key=0)
    first = jnp.zeros(()), tx.init(jnp.zeros(()))
    (p, _), _ = jax.lax.scan(step, first, length=100)
    assert abs(p - 1) < 0.01


def test_the_seed_of_dpsgd_is_old():
    with pytest.warns(DeprecationWarning, match="`seed` is deprecated"):
        old = dpsgd(0.1, 1.0, 1.0, 3)
    assert repr(old.init({})) == repr(dpsgd(0.1, 1.0, 1.0, key=3).init({}))
