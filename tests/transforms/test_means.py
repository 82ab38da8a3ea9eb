"""Parts that act on gradients before an optimizer, or on its steps after it."""

import functools as ft
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import stepax
import stepax.contrib as contrib


GS = np.random.RandomState(3).randn(7, 2, 3)
GS[4] = 0.0
START = np.random.RandomState(4).randn(2, 3)
RATES = 0.5 / np.arange(1, 8)
SCHEDULE = lambda count: 0.5 / (count + 1.0)


def run(tx: Any, gs=GS, start=START, dtype=jnp.float64):
    """Parameters after each step, and the last state."""
    p = {"w": jnp.asarray(start, dtype), "none": None}
    state, out = tx.init(p), []
    for g in gs:
        u, state = tx.update({"w": jnp.asarray(g, dtype), "none": None}, state, p)
        p = stepax.apply_updates(p, u)
        out.append(np.asarray(p["w"]))
    return np.stack(out), state, p


def descend(us, start=START):
    """Plain steps of length 1."""
    return start - np.cumsum(us, 0)


def slow(gs, decay, weight):
    s = gs[0]
    for g in gs:
        s = decay * s + (1 - decay) * g
        yield g + weight * s


def slow_window(gs, window, weight, reduction, warmup):
    for t, g in enumerate(gs, 1):
        last = gs[max(0, t - window) : t]
        mean = last.sum(0) / (len(last) if reduction == "mean" else 1)
        yield g + weight * mean * (t >= window or not warmup)


WINDOWS = [
    (window, 0.5, reduction, warmup)
    for window in (1, 3, 20)
    for reduction in ("mean", "sum")
    for warmup in (True, False)
]


@pytest.mark.few(3)
@pytest.mark.parametrize(("window", "weight", "reduction", "warmup"), WINDOWS)
def test_a_window_of_gradients_is_added(window, weight, reduction, warmup, x64):
    part = contrib.grokfast_ma(window, weight, reduction=reduction, warmup=warmup)
    found, _, _ = run(stepax.chain(part, stepax.sgd(1.0)))
    wanted = descend(list(slow_window(GS, window, weight, reduction, warmup)))
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.mark.parametrize(("decay", "weight"), [(0.0, 1.0), (0.5, 0.0), (0.9, 3.0)])
def test_a_mean_of_gradients_is_added(decay, weight, x64):
    part = contrib.grokfast_ema(decay, weight)
    found, _, _ = run(stepax.chain(part, stepax.sgd(1.0)))
    wanted = descend(list(slow(GS, decay, weight)))
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.mark.parametrize("warmup", [True, False])
def test_a_gradient_that_is_not_a_number_leaves_the_window(warmup):
    gs = GS.copy()
    gs[0] = np.nan
    tx = contrib.grokfast_ma(3, warmup=warmup)
    p = jnp.zeros((2, 3))
    state, finite = tx.init(p), []
    for g in gs:
        u, state = tx.update(jnp.asarray(g, jnp.float32), state)
        finite.append(bool(jnp.isfinite(u).all()))
    assert finite == [False, warmup, False, True, True, True, True]


def test_a_window_of_other_parameters_is_an_error():
    tx = contrib.grokfast_ma(2)
    state = tx.init({"w": jnp.ones((2, 1))})
    message = r"`grokfast_ma` made `window` of shape \(2, 2, 3\).*at \['w'\]"
    with pytest.raises(ValueError, match=message):
        tx.update({"w": jnp.ones((2, 3))}, state)


def test_another_reduction_is_an_error():
    reduction: Any = "median"
    message = r"`reduction` is 'median', expected one of \['mean', 'sum'\]"
    with pytest.raises(ValueError, match=message):
        contrib.grokfast_ma(reduction=reduction)


def on_sphere(gs, rates, radius):
    p = START
    radius = np.linalg.norm(p) if radius is None else radius
    for g, rate in zip(gs, rates, strict=True):
        q = p - rate * radius * g / max(np.linalg.norm(g), 1e-10)
        p = radius * q / max(np.linalg.norm(q), 1e-10)
        yield p


@pytest.mark.parametrize("radius", [None, 0.0, 2.5])
@pytest.mark.parametrize("rate", [0.1, SCHEDULE])
def test_steps_stay_on_a_sphere(rate, radius, x64):
    found, state, _ = run(contrib.hyperball(rate, radius))
    rates = RATES if callable(rate) else [rate] * len(GS)
    wanted = list(on_sphere(GS, rates, radius))
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-15)
    norm = np.linalg.norm(START) if radius is None else radius
    np.testing.assert_allclose(state.radius["w"], norm, rtol=1e-12)


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e15])
def test_the_length_of_a_direction_is_of_no_account(size):
    tx = contrib.hyperball(0.1)
    p = jnp.asarray([3.0, 4.0])
    u, _ = tx.update(size * jnp.asarray([0.0, 1.0]), tx.init(p), p)
    is_direction = size > 1e-10  # that is `eps`
    q = np.array([3.0, 3.5 if is_direction else 4.0])
    np.testing.assert_allclose(p + u, 5 * q / np.linalg.norm(q), rtol=1e-6)


def ahead(gs, rates, weight, decay):
    """The parameters, and where they are evaluated."""
    x, y, mean = START, START, 0 * START
    for g, rate in zip(gs, rates, strict=True):
        new = y - rate * g
        mean = decay * mean + (1 - decay) * (new - x)
        x, y = new, new + weight * mean
        yield y, x


@pytest.mark.parametrize(("weight", "decay"), [(0.0, 0.9), (0.6, 0.0), (1.5, 0.8)])
def test_parameters_lead_the_iterates(weight, decay, x64):
    tx = contrib.ema_nesterov(stepax.sgd(SCHEDULE), weight, decay)
    found, state, p = run(tx)
    ys, xs = map(np.stack, zip(*ahead(GS, RATES, weight, decay), strict=True))
    np.testing.assert_allclose(found, ys, rtol=1e-12)
    x = stepax.eval_params(state, p)
    np.testing.assert_allclose(x["w"], xs[-1], rtol=1e-12)


def test_the_lead_may_be_changed_in_between(x64):
    """The step of x is then that from where the last lead has left it."""
    make = stepax.inject_hyperparams(contrib.ema_nesterov, static_args=["inner"])
    tx = make(stepax.sgd(1.0), weight=jnp.float64(0.5))
    p, x, mean, weight = jnp.asarray(START), START, 0 * START, 0.5
    state = tx.init(p)
    for g, weight in zip(GS, [0.5, 0.5, 2.0, 2.0, 0.0, 0.0, 1.0], strict=True):
        state = stepax.tree.set(state, weight=jnp.float64(weight))
        new = np.asarray(p) - g
        mean, x = 0.9 * mean + 0.1 * (new - x), new
        u, state = tx.update(jnp.asarray(g), state, p)
        p = p + u
        np.testing.assert_allclose(p, x + weight * mean, rtol=1e-12)
    at = stepax.eval_params(state, p)
    np.testing.assert_allclose(at, x, rtol=1e-12)


cautious = ft.partial(stepax.weight_decay, kind="cautious")


def agreeing(p, g, rate, decay):
    return p - rate * (g + decay * p * (g * p >= 0))


@pytest.mark.parametrize("rate", [0.1, SCHEDULE])
@pytest.mark.parametrize("decay", [0.0, 0.3, SCHEDULE])
def test_decay_acts_where_it_agrees_with_the_step(decay, rate, x64):
    found, _, _ = run(stepax.sgd(rate, weight_decay=cautious(decay)))
    p = START
    for i, g in enumerate(GS):
        a, wd = (RATES[i] if callable(x) else x for x in (rate, decay))
        p = agreeing(p, g, a, wd)
        np.testing.assert_allclose(found[i], p, rtol=1e-12)


def test_signs_agree_where_their_product_would_underflow():
    tx = stepax.sgd(1.0, weight_decay=cautious(1.0))
    p, g = jnp.asarray([1e-30, -1e-30]), jnp.full(2, 1e-30)
    u, _ = tx.update(g, tx.init(p), p)
    np.testing.assert_allclose(u, [-2e-30, -1e-30], rtol=1e-6)
