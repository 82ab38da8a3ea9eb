"""Means whose decay is near 1: steps in float32 are those in float64."""

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import make
from inside import ROWS
from keywords import keywords

import stepax
from stepax._engine.arrays import moments
from stepax._engine.factories import ranges


NEAR_1 = 0.999999
WEIGHTS = ranges.UP_TO_1, ranges.MOMENTUM
G = np.random.default_rng(0).normal(size=(3, 2, 3))
P = np.random.default_rng(1).normal(size=(2, 3))


def decays(row):
    """The arguments that are weights of the past."""
    names = inspect.signature(row.factory).parameters
    found = [k for k in names if ranges.RANGES.get(k) in WEIGHTS]
    return [k for k in found if k not in ("momentum", "eta_minus")]  # of sums and steps


ROWS_THAT_DECAY = [
    pytest.param(row, id=row.name)
    for row in ROWS.values()
    if decays(row) and row.kind not in ("aggregate", "measure")
]


def steps(tx, dtype) -> Any:
    """Updates of three steps, without a program for each optimizer."""
    tx, p, out = stepax.with_extra_args_support(tx), jnp.asarray(P, dtype), []
    with jax.disable_jit():
        state = tx.init({"w": p})
        for g in jnp.asarray(G, dtype):
            updates = {"w": g}
            u, state = tx.update(updates, state, {"w": p}, **keywords(updates))
            out.append(u["w"])
    return np.stack(out)


def drawn_narrow(key, shape, dtype):
    """Noise that is the same in all dtypes; JAX draws other bits for each."""
    return jax.random.normal(key, shape, "float32").astype(dtype)


def all_decays(row, value):
    """Arguments that set all decays of a factory."""
    pairs = {k: (value, value) for k in decays(row) if k == "betas"}
    takes = inspect.signature(row.factory).parameters
    same = {"sampler": drawn_narrow} if "sampler" in takes else {}
    return {k: value for k in decays(row)} | pairs | same


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS_THAT_DECAY)
def test_decays_near_1_give_in_float32_the_steps_of_float64(row):
    found = steps(make(row, **all_decays(row, NEAR_1)), "float32")
    with jax.enable_x64(True):
        wanted = steps(make(row, **all_decays(row, NEAR_1)), "float64")
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS_THAT_DECAY)
def test_decays_near_1_may_be_arrays(row):
    """An array means what it holds, which is 0.99999899."""
    held = np.float32(NEAR_1)
    found = steps(make(row, **all_decays(row, jnp.asarray(held))), "float32")
    with jax.enable_x64(True):
        wanted = steps(make(row, **all_decays(row, float(held))), "float64")
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.few(1)
@pytest.mark.parametrize("decay", [0.0, 1.0])
@pytest.mark.parametrize("row", ROWS_THAT_DECAY)
def test_decays_at_their_ends_make_no_nan(row, decay):
    arrays = all_decays(row, jnp.float32(decay))
    assert not np.isnan(steps(make(row, **arrays), "float32")).any()


def wanted_correction(decay, t):
    return -np.expm1(np.multiply(t, np.log(np.float64(decay))))


TIMES = np.array([1, 2, 7, 1000, 10**6, 10**9, 2**31 - 1])
DECAYS = [1e-30, 0.5, 0.9, 0.999, 0.9991, 0.9999, 0.99999, 0.999999, 1 - 2.0**-24]


@pytest.mark.few(1)
@pytest.mark.parametrize("decay", DECAYS)
def test_corrections_are_exact_at_any_step(decay):
    # Up to 0.999, the bits are those of Optax, and 1 - decay is off by 2^-25 of 1.
    rtol = 2.0**-24 / (1 - decay) if decay <= 0.999 else 1e-6
    t = jnp.asarray(TIMES, "int32")
    found = jax.jit(lambda t: moments.bias_correction(decay, t))(t)
    np.testing.assert_allclose(found, wanted_correction(decay, TIMES), rtol=rtol)
    array = jnp.float32(decay)
    found = jax.jit(moments.bias_correction)(array, t)
    # A power is computed by a logarithm: some roundings of the larger one of the terms.
    rtol = 3 * 2.0**-23 / (1 - decay) if decay <= 0.999 else 1e-6
    np.testing.assert_allclose(
        found, wanted_correction(np.float32(decay), TIMES), rtol=max(rtol, 1e-6)
    )


def test_ordinary_corrections_are_those_of_optax():
    t = jnp.asarray(TIMES, "int32")
    for decay in 0.0, 0.5, 0.9, 0.98, 0.99, 0.999:
        for b in decay, jnp.float32(decay):
            found = moments.bias_correction(b, t)
            with jax.numpy_dtype_promotion("standard"):
                wanted = 1 - jnp.float32(decay) ** t
            np.testing.assert_array_equal(found, wanted)


def test_nothing_is_made_up_for_where_nothing_enters():
    for decay in 1, 1.0, jnp.float32(1):
        assert moments.bias_correction(decay, jnp.int32(3)) == 1


def test_corrections_have_derivatives():
    c = jax.jit(jax.grad(lambda b: moments.bias_correction(b, jnp.int32(3))))
    for b in jnp.float32([0, 0.5, 0.9999]):
        with jax.numpy_dtype_promotion("standard"):
            slope = c(b)
        np.testing.assert_allclose(slope, -3 * b**2, rtol=1e-4)


def test_a_mean_of_decay_near_1_forgets_as_fast_as_it_says():
    """The half-life of a decay that float32 lacks; of 0.99999899 it is 1.3 % longer."""
    n = 700_000
    fade = lambda i, m: moments.ema(m, jnp.zeros_like(m), NEAR_1)
    found = jax.lax.fori_loop(0, n, fade, jnp.float32(1))
    # Each of the steps rounds by half an ulp at most, at random.
    np.testing.assert_allclose(found, np.exp(n * np.log1p(NEAR_1 - 1)), rtol=1e-3)


def test_an_infinite_mean_stays_so():
    m = moments.ema(jnp.float32(np.inf), jnp.float32(1), NEAR_1)
    assert m == np.inf


@pytest.mark.few(2)
@pytest.mark.parametrize("b2", [0.9995, 0.99999, 0.999999, jnp.float32(0.999999)])
def test_radam_trusts_a_mean_square_that_is_long(b2):
    """The same rectification as in float64, where it is no difference of millions."""
    rates, tx = [], stepax.scale_by_radam(b2=b2)
    step = jax.jit(tx.update)
    for t in 1, 4, 5, 6, 100, 10**5, 10**7:
        state = tx.init(jnp.ones(1))._replace(
            count=jnp.int32(t - 1), mu=jnp.ones(1), nu=jnp.ones(1)
        )
        u = step(jnp.ones(1), state)[0][0]
        b = np.float64(b2)
        c1, c2 = -np.expm1(t * np.log(0.9)), -np.expm1(t * np.log(b))
        top = 2 / (1 - b) - 1
        rho = top - 2 * t * b**t / c2
        ratio = (rho - 4) * (rho - 2) * top / ((top - 4) * (top - 2) * rho)
        steady = np.sqrt(max(ratio, 0)) * np.sqrt(c2)
        rates.append((u, (steady if rho >= 5 else 1) / c1))
    np.testing.assert_allclose(*np.transpose(rates), rtol=1e-4)


def test_trees_of_means_are_corrected_exactly():
    found = stepax.tree.bias_correction({"m": jnp.float32(1e-6)}, NEAR_1, 1)
    np.testing.assert_allclose(found["m"], 1e-6 / (1 - NEAR_1), rtol=2e-7)
    found = stepax.tree.bias_correction(
        {"m": jnp.ones(2)}, jnp.float32(NEAR_1), jnp.int32(3)
    )
    wanted = wanted_correction(np.float32(NEAR_1), 3)
    np.testing.assert_allclose(found["m"], np.ones(2) / wanted, rtol=1e-6)
