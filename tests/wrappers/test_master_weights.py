"""Narrow parameters lose no step: by masters, or by rounding at random."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import types
from runs import eager, equal, parameters

import stepax
from stepax._wrappers.stochastic import _rounded


NARROW = ["bfloat16", "float16"]
START = np.linspace(0.5, 2.0, 12, dtype=np.float32).reshape(4, 3)


def narrow(dtype="bfloat16"):
    return {"w": jnp.asarray(START).astype(dtype)}


def train(tx, p, steps=1000):
    """Parameters after many steps towards zero, with gradients that all can hold."""

    def step(carry, i):
        p, state = carry
        g = jax.tree.map(lambda x: jnp.where(i % 4 == 0, -0.5, 1.0).astype(x.dtype), p)
        g = jax.tree.map(lambda g, x: jnp.broadcast_to(g, x.shape), g, p)
        u, state = tx.update(g, state, p)
        return (stepax.apply_updates(p, u), state), None

    run = lambda p: jax.lax.scan(step, (p, tx.init(p)), jnp.arange(steps))[0]
    return jax.jit(run)(p)


def wide(p):
    return jax.tree.map(lambda x: x.astype("float32"), p)


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", NARROW)
def test_a_thousand_steps_follow_single_precision(dtype):
    inner, eps = stepax.adamw(1e-4), float(jnp.finfo(dtype).eps)
    wanted, _ = train(inner, wide(narrow(dtype)))
    found, state = train(stepax.master_weights(inner), narrow(dtype))
    # Compiled in another program, single precision differs by an ulp a step; then the
    # rounding of the parameter, half an ulp of a number up to 2.
    np.testing.assert_allclose(state.masters["w"], wanted["w"], rtol=1e-4)
    np.testing.assert_allclose(np.float32(found["w"]), wanted["w"], atol=eps)
    lost, _ = train(inner, narrow(dtype))
    error = np.abs(np.float32(lost["w"]) - wanted["w"]).max()
    assert error > 4 * eps


@pytest.mark.parametrize("g_dtype", ["bfloat16", "float32"])
def test_parameters_are_the_rounded_masters(g_dtype):
    tx, p = stepax.master_weights(stepax.sgd(0.37)), narrow()
    state = tx.init(p)
    for i in range(5):
        g = jax.tree.map(lambda x, i=i: jnp.sin(x + i).astype(g_dtype), p)
        u, state = tx.update(g, state, p)
        p = stepax.apply_updates(p, u)
        assert u["w"].dtype == g_dtype
        # A narrow update of a parameter that shrinks much is rounded itself.
        atol = 0 if g_dtype == "float32" else 2.0**-8
        rounded = np.float32(state.masters["w"].astype("bfloat16"))
        np.testing.assert_allclose(np.float32(p["w"]), rounded, rtol=0, atol=atol)


def test_what_rounding_leaves_over_is_mended_by_the_next_step():
    tx, p = stepax.master_weights(stepax.sgd(1.001)), jnp.ones(2, "bfloat16")
    state = tx.init(p)
    wanted = []
    for g in jnp.ones_like(p), jnp.zeros_like(p):
        u, state = tx.update(g, state, p)
        p = stepax.apply_updates(p, u)
        wanted.append(p == state.masters.astype("bfloat16"))
    # -0.001 is as good a number, but the update to it, -1.001, is rounded to -1.
    assert not wanted[0].any() and wanted[1].all()


def test_a_change_from_elsewhere_is_undone_unless_init_is_called():
    tx, p = stepax.master_weights(stepax.sgd(0.5)), jnp.ones(2, "bfloat16")
    g, other = jnp.zeros_like(p), jnp.full_like(p, 3.0)
    u, _ = tx.update(g, tx.init(p), other)
    equal(stepax.apply_updates(other, u), p)
    u, _ = tx.update(g, tx.init(other), other)
    equal(stepax.apply_updates(other, u), other)


def test_wide_parameters_have_no_copy():
    p = {
        "narrow": jnp.ones(3, "bfloat16"),
        "wide": jnp.ones(3),
        "c": jnp.ones(2, "complex64"),
    }
    p |= {"n": jnp.arange(3), "key": jax.random.key(0), "none": None, "f": jnp.tanh}
    tx = stepax.master_weights(stepax.adam(0.1))
    state = tx.init(p)
    assert types(state.masters) == types({"narrow": jnp.ones(3)})
    assert state.inner_state[0].nu["narrow"].dtype == jnp.float32
    g = {k: x if k in ("narrow", "wide", "c") else None for k, x in p.items()}
    u, new = tx.update(g, state, p)
    assert types(new) == types(state)
    v, _ = stepax.adam(0.1).update(g, stepax.adam(0.1).init(p), p)
    equal(u["wide"], v["wide"])
    equal(u["c"], v["c"])


def test_masters_may_be_in_double_precision(x64):
    p = {"half": jnp.ones(2, "float16"), "single": jnp.ones(2, "float32")}
    state = stepax.master_weights(stepax.sgd(0.1), jnp.float64).init(p)
    assert [x.dtype for x in jax.tree.leaves(state)] == [jnp.float64] * 2


def test_an_average_inside_is_that_of_the_masters():
    tx = stepax.master_weights(stepax.averages(stepax.sgd(1e-4), None))
    _, state = train(tx, narrow(), 8)
    steps = 1e-4 * np.cumsum(np.where(np.arange(8) % 4 == 0, -0.5, 1.0))
    wanted = np.float32(narrow()["w"]) - steps.mean()
    found = stepax.tree.get(state, "average")["w"]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


WRAPPERS = {
    "master_weights": stepax.master_weights,
    "stochastic_rounding": lambda inner: stepax.stochastic_rounding(inner, 0),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_errors_name_the_path(name):
    tx, p = WRAPPERS[name](stepax.sgd(0.1)), narrow()
    with pytest.raises(ValueError, match="`params` is missing"):
        tx.update(p, tx.init(p))
    with pytest.raises(ValueError, match=r"\['w'\] has shape"):
        tx.update({"w": jnp.ones(3, "bfloat16")}, tx.init(p), p)
    with pytest.raises(TypeError, match=f"`inner` of `{name}`"):
        WRAPPERS[name](stepax.sgd)


def test_errors_of_masters_name_the_path():
    tx = stepax.master_weights(stepax.sgd(0.1))
    with pytest.raises(ValueError, match=r"\['w'\], but no array in `masters`"):
        tx.update(narrow(), tx.init(wide(narrow())), narrow())
    state = tx.init({"w": jnp.ones(3, "bfloat16")})
    with pytest.raises(ValueError, match=r"\['w'\] has shape .* `masters` in the sta"):
        tx.update(narrow(), state, narrow())
    with pytest.raises(
        TypeError, match="`dtype` must be a floating-point dtype.*int32"
    ):
        stepax.master_weights(stepax.sgd(0.1), jnp.int32)


def draws(x, dtype, n=4096) -> Any:
    """x, rounded many times."""
    x = jnp.broadcast_to(jnp.float32(x), n)
    noise = jax.random.uniform(jax.random.key(1), [n])
    return np.float32(jax.jit(_rounded, static_argnums=1)(x, jnp.dtype(dtype), noise))


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("part", [0.1, 0.5, 0.93])
@pytest.mark.parametrize("base", [1.0, -3.0, 2.0**-14, 0.0])
def test_the_mean_of_many_roundings_is_the_number(dtype, part, base):
    base = np.float32(jnp.asarray(base, dtype))
    up = np.float32(jax.lax.nextafter(jnp.asarray(base, dtype), jnp.asarray(9, dtype)))
    if base == 0:
        base, up = (
            np.float32(2.0**-10),
            np.float32(2.0**-10 * (1 + jnp.finfo(dtype).eps)),
        )
    found = draws(base + part * (up - base), dtype)
    assert set(found) == {base, up}
    # Four standard deviations of a mean of 4096 draws.
    share = ((found - base) / (up - base)).mean()
    assert abs(share - part) < 4 * np.sqrt(part * (1 - part) / found.size)


@pytest.mark.parametrize("x", [1.0, -0.75, 0.0, np.inf, -np.inf])
def test_numbers_that_need_no_rounding_stay(x):
    equal(draws(x, "bfloat16"), x)
    assert np.isnan(draws(np.nan, "bfloat16")).all()


@pytest.mark.parametrize("sign", [1, -1])
def test_numbers_beyond_the_largest_become_it_or_infinite(sign):
    found = set(sign * draws(sign * 65510.0, "float16", 64))
    assert found <= {np.float32(65504), np.float32(np.inf)}


@pytest.mark.slow
def test_the_key_decides():
    p = jax.tree.map(lambda x: x.astype("bfloat16"), parameters())
    gs = [jax.tree.map(jnp.ones_like, p)] * 3
    make = lambda key: stepax.stochastic_rounding(stepax.sgd(1e-3), key)
    u, state = eager(make(0), gs, p)
    again, _ = eager(make(jax.random.key(0)), gs, p)
    other, _ = eager(make(1), gs, p)
    equal(u["w"], again["w"])
    assert (u["w"] != other["w"]).any()
    assert (u["w"][0] != u["w"][1]).any()
    assert types(state) == types(make(0).init(p))


def test_small_steps_count_in_the_mean():
    inner, p = stepax.sgd(1e-4), {"w": jnp.ones((64, 8), "bfloat16")}
    found, _ = train(stepax.stochastic_rounding(inner, 0), p, 400)
    wanted, _ = train(inner, wide(p), 400)
    lost, _ = train(inner, p, 400)
    equal(lost["w"], p["w"])
    # A walk of 400 roundings, each with a variance of at most (2^-8)² s (1 - s) for a
    # step of s = 1e-4 / 2^-8 ulps: 2^-8 sqrt(400 s) = 0.0125, over 512 numbers 5.5e-4.
    assert abs(np.float32(found["w"]).mean() - wanted["w"].mean()) < 4 * 5.5e-4
