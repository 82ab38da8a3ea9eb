"""MoMo and MoMo-Adam: the paper, Optax, and the decay in which they differ."""

import functools as ft

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from single_steps import STEPS, assert_close, assert_follows, rate, side_by_side

from stepax import contrib


def model_step(a, k, h, f, c, lb, dp, size, lowest, adapts):
    """Schaipp et al., 2023, the step size and the lower bounds before and after."""
    if adapts and k * (f - c) + dp < k * h * lb:
        lb = max((k * (f - c) + dp) / (2 * k * h), lowest)
    tau = min(a / h, max(k * (f - h * lb - c) + dp, 0) / size)
    return tau, max((f + dp - c - tau * size / 2) / h, lowest) if adapts else lb


def momo(rate, beta, lowest, decay, adapts, is_proximal=False):
    """Algorithm 1; the means start at their first values."""

    def run(start):
        d, f, c, lb = 0, 0, 0, lowest

        def step(t, p, g, value):
            nonlocal d, f, c, lb
            a, b = rate(t - 1), beta if t > 1 else 0
            d = b * d + (1 - b) * g
            f = b * f + (1 - b) * value
            c = b * c + (1 - b) * (g @ p)
            k = 1 + a * decay
            tau, lb = model_step(a, k, 1, f, c, lb, d @ p, d @ d, lowest, adapts)
            return (p - tau * d) / k if is_proximal else p / k - tau * d

        return step

    return run


def momo_adam(rate, b1, b2, eps, lowest, decay, adapts, is_proximal=False):
    """Algorithm 2; the means start at zero."""

    def run(start):
        d, v, f, c, lb = 0, 0, 0, 0, lowest

        def step(t, p, g, value):
            nonlocal d, v, f, c, lb
            a, h = rate(t - 1), 1 - b1**t
            d = b1 * d + (1 - b1) * g
            v = b2 * v + (1 - b2) * g**2
            f = b1 * f + (1 - b1) * value
            c = b1 * c + (1 - b1) * (g @ p)
            D = np.sqrt(v / (1 - b2**t)) + eps
            k, size = 1 + a * decay, d @ (d / D)
            tau, lb = model_step(a, k, h, f, c, lb, d @ p, size, lowest, adapts)
            return (p - tau * d / D) / k if is_proximal else p / k - tau * d / D

        return step

    return run


ADAM = ft.partial(contrib.momo_adam, b1=0.8, b2=0.9, eps=0.1, lower_bound=0.05)
PAPERS = {
    "momo": (contrib.momo(rate, 0.8), momo(rate, 0.8, 0.0, 0.0, False)),
    "momo, decay": (
        contrib.momo(rate, 0.8, 0.05, 0.5),
        momo(rate, 0.8, 0.05, 0.5, False),
    ),
    "momo, proximal decay": (
        contrib.momo(rate, 0.8, 0.05, 0.5, proximal_decay=True),
        momo(rate, 0.8, 0.05, 0.5, False, True),
    ),
    "momo, adaptive bound": (
        contrib.momo(rate, 0.8, 0.05, 0.5, True),
        momo(rate, 0.8, 0.05, 0.5, True),
    ),
    "momo_adam": (
        ADAM(rate, weight_decay=0.5),
        momo_adam(rate, 0.8, 0.9, 0.1, 0.05, 0.5, False),
    ),
    "momo_adam, proximal decay": (
        ADAM(rate, weight_decay=0.5, proximal_decay=True),
        momo_adam(rate, 0.8, 0.9, 0.1, 0.05, 0.5, False, True),
    ),
    "momo_adam, adaptive bound": (
        ADAM(rate, weight_decay=0.5, adapt_lower_bound=True),
        momo_adam(rate, 0.8, 0.9, 0.1, 0.05, 0.5, True),
    ),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", PAPERS)
def test_follows_the_paper(name, x64):
    assert_follows(*PAPERS[name])


CALLS = {
    "momo": {"beta": 0.8, "lower_bound": 0.05},
    "momo_adam": {"b1": 0.8, "b2": 0.9, "eps": 0.1, "lower_bound": 0.05},
}
MORE = {
    "plain": {},
    "decay": {"learning_rate": rate, "weight_decay": 0.5},
    "adaptive": {"learning_rate": 0.1, "weight_decay": 0.5, "adapt_lower_bound": True},
}


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("more", MORE)
@pytest.mark.parametrize("name", CALLS)
def test_each_step_is_that_of_optax(name, more, dtype):
    """To the rounding of the model of the loss, a difference of large numbers.

    The step size is max(f - c + Σ d p, 0) / size; an error of e in the numerator moves
    the parameters by e d / size, for D = 1.  Five numbers are added, and means of them,
    f, c and Σ d p, have some eps each: 16 eps of their magnitudes are allowed.
    """
    settings = CALLS[name] | MORE[more]
    with jax.enable_x64(dtype == "float64"):
        ours = getattr(contrib, name)(**settings)
        theirs = getattr(optax.contrib, name)(**settings)
        p, _, found, expected = side_by_side(ours, theirs, dtype)
        flat = lambda tree: np.concatenate(
            [np.asarray(x).reshape(STEPS, -1) for x in jax.tree.leaves(tree)], axis=1
        )
        u, v, state = flat(found[0]), flat(expected[0]), expected[1]
        d, D = flat(state.exp_avg), 1.0
        if name == "momo_adam":
            t = np.arange(1, STEPS + 1)[:, None]
            D = np.sqrt(flat(state.exp_avg_sq) / (1 - 0.9**t)) + 0.1
        large = np.abs(d * flat(p)).sum(axis=1) + abs(state.barf) + abs(state.gamma)
        tau_error = 16 * np.finfo(u.dtype).eps * large / np.sum(d**2 / D, axis=1)
        bound = tau_error * np.abs(d / D).max(axis=1)
        bound = bound + 4 * np.finfo(u.dtype).eps * np.abs(v).max(axis=1)
        assert (np.abs(u - v).max(axis=1) <= bound).all()
        # `gamma` and `lb` are sums of terms of both signs.
        assert_close(found[1], expected[1], 32)


def test_decay_of_the_step_is_a_choice():
    """Equation 16 for one number: p = 1, g = 1, loss 1, and a rate and decay of 1."""
    p = jnp.ones(1)
    step = lambda tx: p + tx.update(p, tx.init(p), p, value=1.0)[0]
    assert step(contrib.momo(0.5, weight_decay=1.0)) == pytest.approx(1 / 1.5 - 0.5)
    proximal = contrib.momo(0.5, weight_decay=1.0, proximal_decay=True)
    assert step(proximal) == pytest.approx((1 - 0.5) / 1.5)


@pytest.mark.slow
@pytest.mark.parametrize("make", [contrib.momo, contrib.momo_adam])
def test_gradients_of_zeros_give_no_step(make):
    tx, p = make(adapt_lower_bound=True), jnp.ones(2)
    u, state = tx.update(jnp.zeros(2), tx.init(p), p, value=1.0)
    np.testing.assert_array_equal(u, 0)
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(state))


@pytest.mark.parametrize("make", [contrib.momo, contrib.momo_adam])
def test_the_loss_is_asked_for(make):
    tx, p = make(), jnp.ones(2)
    with pytest.raises(TypeError, match="reads the keyword `value`"):
        tx.update(p, tx.init(p), p)


def test_weight_decay_may_be_a_schedule():
    p = jnp.ones(2)
    u, v = (
        contrib.momo(weight_decay=x).update(p, contrib.momo().init(p), p, value=1.0)[0]
        for x in (0.1, lambda count: 0.1)
    )
    np.testing.assert_array_equal(u, v)


def test_complex_parameters_are_pairs_of_real_ones():
    tx, z = contrib.momo(), jnp.array([1 + 2j, 3 - 1j], "complex64")
    split = lambda z: jnp.stack([z.real, z.imag])
    u, _ = tx.update(z * (1 - 2j), tx.init(z), z, value=1.0)
    v, _ = tx.update(split(z * (1 - 2j)), tx.init(split(z)), split(z), value=1.0)
    np.testing.assert_allclose(split(u), v, rtol=1e-6)
