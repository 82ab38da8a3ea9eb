"""Norms, noise, means, guards, constraints, functions and conditions."""

import functools as ft
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compare import assert_equal, assert_same_structure, at, leaves, random, run
from inside import ROWS

from stepax import (
    EmptyState,
    MaskedNode,
    keep_params_nonnegative,
    stateless,
    stateless_with_tree_map,
    zero_nans,
)
from stepax._transforms import clip, mean, noise, norm
from stepax.rules import Rule


TABLE = {
    "scale_by_trust_ratio": (norm, {}),
    "scale_by_trust_ratio, all": (
        norm,
        {"min_norm": 0.1, "trust_coefficient": 0.5, "eps": 1e-3},
    ),
    "scale_by_param_block_norm": (norm, {}),
    "scale_by_param_block_rms": (norm, {"min_scale": 1.2}),
    "normalize_by_update_norm": (norm, {"scale_factor": 0.3}),
    "centralize": (norm, {}),
    "add_noise": (noise, {"eta": 0.3, "gamma": 0.55, "key": 3}),
    "ema": (mean, {"decay": 0.9}),
    "ema, biased": (mean, {"decay": 0.9, "debias": False}),
    "apply_every": (mean, {"k": 3}),
    "zero_nans": (clip, {}),
    "keep_params_nonnegative": (clip, {}),
}

standard = ft.partial(jax.numpy_dtype_promotion, "standard")


def both(entry):
    """Our transformation and Optax's of an entry of the table."""
    name = entry.partition(",")[0]
    module, kwargs = TABLE[entry]
    return getattr(module, name)(**kwargs), getattr(optax, name)(**kwargs)


@pytest.mark.slow
@pytest.mark.parametrize("entry", TABLE)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_equals_optax_for_200_steps(entry, dtype):
    tx, reference = both(entry)
    with jax.enable_x64(dtype == "float64"):
        p, gs = random(0, dtype), random(1, dtype, (200,))
        with standard():
            wanted, state = run(reference, gs, p)
        found, our_state = run(tx, gs, p)
        assert_equal(found, wanted)
        assert_equal(our_state, state)
        assert_same_structure(our_state, state)
        first = tx.init(p)
        assert_equal(first, reference.init(p))
        for x, y in zip(leaves(first), leaves(our_state), strict=True):
            assert x.shape == y.shape and x.dtype == y.dtype
        found, _ = run(tx, gs, p, wrap=lambda f: f, steps=5)
        for x, y in zip(leaves(found), leaves(wanted), strict=True):
            # What all leaves share is computed before they are, so not in one program
            # with them: a bias correction or a norm may round otherwise, by an ulp, of
            # which a quotient makes two.
            np.testing.assert_array_max_ulp(x, y[:5], maxulp=2)


def test_first_steps_are_optax_s():
    """All of the table in one program, which may round otherwise."""
    p, gs = random(0, "float32"), random(1, "float32", (2,))

    def steps(tx):
        first, state = tx.update(at(0, gs), tx.init(p), p)
        return first, tx.update(at(1, gs), state, p)

    with standard():
        ours, optax_s = jax.jit(
            lambda: [{x: steps(both(x)[i]) for x in TABLE} for i in (0, 1)]
        )()
    for entry in TABLE:
        for x, y in zip(leaves(ours[entry]), leaves(optax_s[entry]), strict=True):
            # Norms of a dozen squares, and a quotient by them.
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7, err_msg=entry)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("entry", "dtype"),
    [
        (entry, dtype)
        for entry in TABLE
        for dtype in ("float16", "bfloat16", "complex64")
        if dtype != "complex64" or ROWS[entry.partition(",")[0]].holomorphic
    ],
)
def test_state_and_updates_keep_their_types(entry, dtype):
    tx, _ = both(entry)
    p, gs = random(0, dtype), random(1, dtype, (4,))

    def step(state, g):
        u, state = tx.update(g, state, p)
        return state, u

    _, u = jax.jit(lambda s: jax.lax.scan(step, s, gs))(tx.init(p))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), u) == jax.tree.map(
        lambda x: (x.shape, x.dtype), gs
    )
    assert all(np.isfinite(np.asarray(x, "complex64")).all() for x in leaves(u))


@pytest.mark.few(4)
@pytest.mark.parametrize("entry", TABLE)
def test_leaves_without_gradient_are_passed_over(entry):
    tx, _ = both(entry)
    p = {"w": jnp.ones((2, 3)), "none": None, "f": jax.nn.relu, "i": jnp.ones(2, int)}
    float0 = np.zeros(2, jax.dtypes.float0)
    g = {"w": jnp.ones((2, 3)), "none": None, "f": None, "i": float0}
    u, state = tx.update(g, tx.init(p), p)
    assert u["none"] is None and u["f"] is None and u["i"].dtype == jax.dtypes.float0
    assert jax.tree.structure(state) == jax.tree.structure(tx.init(p))
    assert tx.update({}, tx.init({}), {})[0] == {}


NORMS = [
    norm.scale_by_trust_ratio(),
    norm.scale_by_param_block_norm(),
    norm.scale_by_param_block_rms(),
    norm.normalize_by_update_norm(eps=1e-3),  # the slope is 1 / eps, also in float16
]


@pytest.mark.few(2)
@pytest.mark.parametrize("tx", NORMS, ids=repr)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_norms_of_zero_are_safe_and_have_a_derivative(tx, dtype):
    zero = jax.tree.map(jnp.zeros_like, random(0, dtype))

    def summed(g, p):
        u, _ = tx.update(g, tx.init(p), p)
        return jax.tree.reduce(jnp.add, jax.tree.map(jnp.sum, u)), u

    slopes, u = jax.jit(jax.grad(summed, (0, 1), has_aux=True))(zero, zero)
    assert all((x == 0).all() for x in leaves(u))
    assert all(np.isfinite(np.asarray(x, "float32")).all() for x in leaves(slopes))


@pytest.mark.parametrize("tx", [*NORMS[:3], keep_params_nonnegative()])
def test_parameters_are_asked_for(tx):
    g = {"w": jnp.ones(2)}
    with pytest.raises(ValueError, match="`params` is missing"):
        tx.update(g, tx.init(g))


def test_noise_is_for_floating_point_numbers():
    g = {"w": jnp.ones(2), "i": jnp.ones(2, int)}
    tx = noise.add_noise(0.1, 0.5, key=0)
    with pytest.raises(TypeError, match=r"`add_noise` trains floating.* \['i'\] is of"):
        tx.update(g, tx.init(g))


def test_trust_ratio_is_one_where_a_norm_is_zero():
    tx = norm.scale_by_trust_ratio(trust_coefficient=0.5)
    g = {"a": jnp.asarray([3.0, 4.0]), "b": jnp.asarray([3.0, 4.0])}
    p = {"a": jnp.zeros(2), "b": jnp.asarray([0.0, 10.0])}
    u, _ = tx.update(g, tx.init(p), p)
    np.testing.assert_array_equal(u["a"], g["a"])
    np.testing.assert_array_equal(u["b"], g["b"])  # 0.5 · 10 / 5


# Noise


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
def test_noise_has_the_bits_of_optax(dtype):
    g: Any = {k: jnp.zeros_like(x) for k, x in random(0, dtype).items()}
    g["none"] = None
    keys: Any = 7, jax.random.key(7), np.int32(7)
    for key in keys:
        ours, theirs = noise.add_noise(1.0, 0.0, key), optax.add_noise(1.0, 0.0, key)
        state, reference = ours.init(g), theirs.init(g)
        for _ in range(3):
            u, state = ours.update(g, state)
            with standard():
                wanted, reference = jax.jit(theirs.update)(g, reference)
            assert_equal(u, wanted)
            assert_equal(state, reference)


def test_noise_fades_as_announced():
    g = {"w": jnp.zeros((100_000,))}
    tx = noise.add_noise(0.5, 0.55, jax.random.key(0))
    state = tx.init(g)
    for step in range(1, 4):
        u, state = tx.update(g, state)
        # The variance of n normal numbers has the relative deviation sqrt(2 / n),
        # 0.0045; four of these.
        np.testing.assert_allclose(np.var(u["w"]), 0.5 / step**0.55, rtol=0.018)


def test_key_may_be_raw():
    raw = noise.add_noise(1.0, 0.5, jax.random.PRNGKey(5))
    assert_equal(raw.init({}), noise.add_noise(1.0, 0.5, 5).init({}))


def test_key_of_the_caller_outlives_the_donation_of_a_state():
    key = jax.random.key(0)
    tx = noise.add_noise(1.0, 0.5, key)
    g = {"w": jnp.ones(2)}
    state = tx.init(g)
    jax.jit(tx.update, donate_argnums=1)(g, state)
    assert not key.is_deleted()
    tx.init(g)


def test_key_is_wanted_and_seed_is_old():
    with pytest.warns(DeprecationWarning, match="`seed` is deprecated") as caught:
        old = noise.add_noise(1.0, 0.5, seed=3)
    assert caught[0].filename == __file__
    assert_equal(old.init({}), noise.add_noise(1.0, 0.5, 3).init({}))
    with pytest.warns(UserWarning, match="`key` will be required"):
        assert_equal(noise.add_noise(1.0, 0.5).init({}), optax_noise_without_key())
    with pytest.raises(ValueError, match="both `key` and `seed`"):
        noise.add_noise(1.0, 0.5, 3, seed=3)


def optax_noise_without_key():
    with warnings.catch_warnings(action="ignore"):
        return optax.add_noise(1.0, 0.5).init({})


# Means and sums


@pytest.mark.few(1)
@pytest.mark.parametrize("stored", ["float32", "bfloat16", "float64"])
def test_stored_dtype_of_the_mean_is_the_one_asked_for(stored):
    with jax.enable_x64(stored == "float64"):
        tx: Any = mean.ema(0.9, accumulator_dtype=stored)
        p = random(0, "bfloat16")
        state = tx.init(p)
        for _ in range(2):
            assert {str(x.dtype) for x in leaves(state.ema)} == {stored}
            u, state = tx.update(p, state)
            assert {str(x.dtype) for x in leaves(u)} == {"bfloat16"}


def test_mean_of_equal_updates_is_that_update():
    tx = mean.ema(0.99)
    g = {"w": jnp.asarray([1.0, -2.0, 3e4])}
    state = tx.init(g)
    for _ in range(5):
        u, state = tx.update(g, state)
        # 1 - 0.99^t loses up to 7 bits where t is 1: 100 half ulps.
        np.testing.assert_allclose(u["w"], g["w"], rtol=6e-6)


@pytest.mark.parametrize("k", [1, 3, np.int64(2), jnp.float32(2)], ids=repr)
def test_sums_are_returned_every_k_steps(k):
    tx: Any = mean.apply_every(k)
    gs = np.random.default_rng(0).integers(-9, 9, (7, 3)).astype("float32")
    state = tx.init(jnp.zeros(3))
    for i, g in enumerate(gs):
        u, state = tx.update(jnp.asarray(g), state)
        is_due = (i + 1) % int(k) == 0
        wanted = gs[i + 1 - int(k) : i + 1].sum(0) if is_due else np.zeros(3)
        np.testing.assert_array_equal(u, wanted)  # whole numbers
        assert state.count == (i + 1) % int(k)


def test_nan_is_gone_with_the_sum_it_came_into():
    tx = mean.apply_every(2)
    state = tx.init(jnp.zeros(()))
    out = []
    for g in jnp.nan, 1.0, 2.0, 3.0:
        u, state = tx.update(jnp.asarray(g), state)
        out.append(float(u))
    np.testing.assert_array_equal(out, [0, np.nan, 0, 5])


@pytest.mark.parametrize("k", [0, -1])
def test_period_below_one_is_refused(k):
    with pytest.raises(ValueError, match=f"`k` must be >= 1, but is {k}"):
        mean.apply_every(k)


# Guards and constraints


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float32", "float16", "complex64"])
def test_nans_become_zero_and_are_remembered(dtype):
    g = {"w": jnp.asarray([1, jnp.nan, jnp.inf], dtype), "b": jnp.ones(2, dtype)}
    tx: Any = zero_nans()
    reference = optax.zero_nans()
    assert_equal(tx.init(g), reference.init(g))
    u, state = tx.update(g, tx.init(g))
    with standard():
        wanted, theirs = reference.update(g, reference.init(g))
    assert_equal(u, wanted)
    assert_equal(state, theirs)
    assert state.found_nan == {"w": True, "b": False}
    _, state = tx.update(jax.tree.map(jnp.ones_like, g), state)
    assert state.found_nan == {"w": False, "b": False}


def test_imaginary_nan_is_replaced():
    g = jnp.asarray([complex(1, np.nan), 2j])
    tx: Any = zero_nans()
    u, state = tx.update(g, tx.init(g))
    np.testing.assert_array_equal(u, [0, 2j])
    assert state.found_nan


def test_zero_nans_sanitizes():
    tx: Any = zero_nans()
    node = tx.node
    assert isinstance(node, Rule) and node.sanitizes


def test_parameters_stay_nonnegative():
    tx = keep_params_nonnegative()
    p = jnp.asarray([1.0, 1.0, 0.0, -2.0, 0.25])
    g = jnp.asarray([-3.0, 0.5, -0.1, 1.0, -0.125])
    u, _ = tx.update(g, tx.init(p), p)
    np.testing.assert_array_equal(p + u, [0, 1.5, 0, 0, 0.125])


# Functions


def test_function_of_trees_gets_what_update_gets():
    seen = []

    def f(updates, params):
        seen.append((updates, params))
        return "made of them"

    tx = stateless(f)
    state = tx.init({"w": jnp.ones(2)})
    assert state == EmptyState()
    assert tx.update("g", state, "p", value=1.0) == ("made of them", state)
    assert tx.update("g", state) == ("made of them", state)
    assert seen == [("g", "p"), ("g", None)]


def test_function_of_arrays_is_called_where_there_are_gradients():
    g = {"w": jnp.ones(2), "none": None, "masked": MaskedNode()}
    p = {"w": jnp.full(2, 3.0), "none": jnp.ones(1), "masked": MaskedNode()}
    tx = stateless_with_tree_map(lambda g, p: g if p is None else g + p)
    u, state = tx.update(g, tx.init(p), p)
    np.testing.assert_array_equal(u["w"], [4, 4])
    assert u["none"] is None and u["masked"] == MaskedNode() and state == EmptyState()
    np.testing.assert_array_equal(tx.update(g, state)[0]["w"], [1, 1])


def test_function_of_arrays_names_the_tree_that_does_not_fit():
    tx = stateless_with_tree_map(lambda g, p: g)
    with pytest.raises(ValueError, match=r"only in `params`: \['b'\]"):
        tx.update({"w": jnp.ones(2)}, EmptyState(), {"w": jnp.ones(2), "b": 1.0})
