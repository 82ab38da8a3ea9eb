"""Means of iterates, written out: GPA, and the later options of `schedule_free`."""

import itertools as it
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stepax
import stepax.contrib as contrib
from stepax._optimizers.radam import number_of_gradients


STEPS = 9
GS = np.random.RandomState(7).randn(STEPS, 4)
GS[5] = 0.0
GS[:, 1] = 0.0
START = np.random.RandomState(8).randn(4)
B2, EPS, DECAY = 0.9, 1e-3, 0.2
SCHEDULE = lambda count: 0.3 / (count + 1.0)
MASKS: dict[str, Any] = {"all": None, "some": {"w": True, "b": False}}


def rate_at(rate: Any, t: int) -> Any:
    """That of step t, of which the first is 1."""
    return rate(t - 1) if callable(rate) else rate


def run(tx: Any, evaluate: Any) -> dict:
    """Of each array, the parameters after each step, and where they are evaluated."""
    p = {"w": jnp.asarray(START), "b": jnp.asarray(START), "none": None}
    state, ys = tx.init(p), []
    for g in GS:
        u, state = tx.update({"w": g, "b": g, "none": None}, state, p)
        p = stepax.apply_updates(p, u)
        ys.append(p)
    x = evaluate(state, p)
    return {k: (np.stack([y[k] for y in ys]), x[k]) for k in ("w", "b")}


def assert_taken(found, wanted):
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-13)


def adam(b1):
    m, v = 0.0, 0.0
    for t, g in enumerate(GS, 1):
        m = b1 * m + (1 - b1) * g
        v = B2 * v + (1 - B2) * g**2
        yield m / (1 - b1**t) / (np.sqrt(v / (1 - B2**t)) + EPS)


def averaged(us, rate, train, evaluation, decay, at_y):
    """The authors' order: decay, the parameters, then z."""
    y, z, c, out = START, START, 1 - evaluation, []
    for t, u in enumerate(us, 1):
        a = rate_at(rate, t)
        y = y - a * decay * y if at_y else y
        z = z if at_y else z - a * decay * z
        y = (1 - c) * y + c * z - a * (1 - train * (1 - c)) * u
        z = z - a * u
        out.append(y)
    return np.stack(out), y + (1 - 1 / train) * (z - y)


@pytest.mark.few(1)
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("rate", [0.1, SCHEDULE])
@pytest.mark.parametrize("at_y", [False, True])
@pytest.mark.parametrize("train, evaluation", [(0.7, 0.9), (1.0, 0.5), (0.3, 1.0)])
def test_gpa_averages_adam(train, evaluation, at_y, rate, mask):
    tx = contrib.gpa_adamw(
        rate,
        0.8,
        B2,
        EPS,
        DECAY,
        train_interpolation=train,
        eval_interpolation=evaluation,
        decay_at_y=at_y,
        weight_decay_mask=MASKS[mask],
    )
    found = run(tx, stepax.eval_params)
    for name in found:
        decay = 0.0 if mask == "some" and name == "b" else DECAY
        wanted = averaged(adam(0.8), rate, train, evaluation, decay, at_y)
        assert_taken(found[name], wanted)


@pytest.mark.usefixtures("x64")
def test_gpa_averages_any_optimizer():
    tx = contrib.gpa(stepax.sgd(SCHEDULE), 0.6, 0.8)
    wanted = averaged(GS, SCHEDULE, 0.6, 0.8, 0.0, False)
    assert_taken(run(tx, stepax.eval_params)["w"], wanted)


@pytest.mark.usefixtures("x64")
def test_gpa_is_schedule_free_but_for_the_weights():
    """With the weight of the t-th iterate, 1 / t, as a mean of all would have."""
    free = contrib.schedule_free(stepax.sgd(0.1), 0.1, 0.9, weight_step_power=0.0)
    p = {"w": jnp.asarray(START)}
    wanted, _ = free.update({"w": GS[0]}, free.init(p), p)
    # At the first step all of x is z.
    tx = contrib.gpa(stepax.sgd(0.1), 0.9, 0.0)
    found, _ = tx.update({"w": GS[0]}, tx.init(p), p)
    np.testing.assert_allclose(found["w"], wanted["w"], rtol=1e-13)


def free(us, rates, lr_power, step_power, b1=0.9):
    """Schedule-free steps by u of (t, g, y), with the rates that the weights have."""
    x = y = z = START
    total, most, out = 0.0, 0.0, []
    for t, (a, of_weight) in enumerate(rates, 1):
        most = max(most, of_weight)
        weight = t**step_power * most**lr_power
        total += weight
        c = weight / total if total else 0.0
        z = z - a * us(t, y)
        x = (1 - c) * x + c * z
        y = b1 * x + (1 - b1) * z
        out.append(y)
    return np.stack(out), x


def rms(momentum, decay):
    steps = list(adam(momentum))
    return lambda t, y: steps[t - 1] + decay * y


POWERS = list(it.product([0.0, 2.0], [0.0, 1.5]))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("momentum", [0.0, 0.8])
@pytest.mark.parametrize("lr_power, step_power", POWERS)
def test_schedule_free_weighs_later_steps_more(lr_power, step_power, momentum):
    more = {"weight_lr_power": lr_power, "weight_step_power": step_power}
    adamw = contrib.schedule_free_adamw(
        0.1, None, 0.9, B2, EPS, DECAY, inner_momentum=momentum, **more
    )
    rates = [(0.1, 0.1)] * STEPS
    found = run(adamw, contrib.schedule_free_eval_params)["w"]
    assert_taken(found, free(rms(momentum, DECAY), rates, lr_power, step_power))
    sgd = contrib.schedule_free_sgd(0.1, weight_decay=DECAY, **more)
    found = run(sgd, contrib.schedule_free_eval_params)["w"]
    plain = lambda t, y: GS[t - 1] + DECAY * y
    assert_taken(found, free(plain, rates, lr_power, step_power))


def rectification(t: int) -> Any:
    most = 2 / (1 - B2) - 1
    rho = most - 2 * t * B2**t / (1 - B2**t)
    if rho <= 4:
        return None
    parts = (rho - 4) * (rho - 2) * most, (most - 4) * (most - 2) * rho
    return np.sqrt(parts[0] / parts[1])


def rectified(rate, decay, silent):
    """The steps, and the rates of each."""
    steps, rs = list(adam(0.0)), list(map(rectification, range(1, STEPS + 1)))
    us = lambda t, y: (GS if rs[t - 1] is None else steps)[t - 1] + decay * y
    factors: list[Any] = [(0.0 if silent else 1.0) if r is None else r for r in rs]
    rates = [rate_at(rate, t) * r for t, r in enumerate(factors, 1)]
    return us, [(a, a) for a in rates]


@pytest.mark.few(1)
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("rate", [0.1, SCHEDULE])
@pytest.mark.parametrize("silent", [True, False])
@pytest.mark.parametrize("lr_power, step_power", POWERS)
def test_radam_weighs_its_rectified_rates(lr_power, step_power, silent, rate, mask):
    tx = contrib.schedule_free_radam(
        rate,
        0.9,
        B2,
        EPS,
        DECAY,
        lr_power,
        weight_step_power=step_power,
        silent_sgd_phase=silent,
        weight_decay_mask=MASKS[mask],
    )
    found = run(tx, contrib.schedule_free_eval_params)
    for name in found:
        decay = 0.0 if mask == "some" and name == "b" else DECAY
        us, rates = rectified(rate, decay, silent)
        assert_taken(found[name], free(us, rates, lr_power, step_power))


def test_a_silent_phase_leaves_everything_where_it_is():
    tx = contrib.schedule_free_radam(0.1)
    p = jnp.asarray(START, jnp.float32)
    state = tx.init(p)
    moved, step = [], jax.jit(tx.update)
    for g in GS:
        u, state = step(jnp.asarray(g, jnp.float32), state, p)
        moved.append(bool((u != 0).any()))
    assert moved == [False] * 4 + [True] * 5


# In float32 the two terms of the formula would leave an error of 0.02.
@pytest.mark.parametrize("b2", [0.5, 0.9, 0.999, 0.99999])
def test_the_number_of_gradients_is_exact_in_float32(b2):
    most = 2 / (1 - b2) - 1
    for t in (1, 5, 40, 3000):
        wanted = most - 2 * t * b2**t / (1 - b2**t)
        for given in (b2, jnp.float32(b2)):
            found = number_of_gradients(given, jnp.int32(t))
            # float32 has 0.99999 to a relative 3e-3 of its distance from 1.
            rtol = 1e-5 if given is b2 else 3e-3
            np.testing.assert_allclose(found, wanted, rtol=rtol)


def test_iterates_have_no_names():
    p = jnp.ones(2)
    state = contrib.gpa(stepax.sgd(1.0)).init(p)
    with pytest.raises(ValueError, match="a `GPAState` has no names, but `name` is"):
        stepax.eval_params(state, p, "slow")


INSIDE = {
    "MultiSteps": lambda tx: stepax.MultiSteps(tx, 2).gradient_transformation(),
    "skip_spikes": stepax.skip_spikes,
    "masked": lambda tx: stepax.masked(tx, {"w": True, "b": False}),
    "master_weights": stepax.master_weights,
}
MEANS = {
    "gpa": (contrib.gpa, stepax.eval_params),
    "ema_nesterov": (
        lambda inner: contrib.ema_nesterov(inner, 0.5),
        stepax.eval_params,
    ),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("where", INSIDE)
@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_parameters_are_evaluated_inside_of_wrappers(mean, where, dtype):
    make, evaluate = MEANS[mean]
    tx = INSIDE[where](make(stepax.sgd(0.1)))
    start = {k: jnp.asarray(START, dtype) for k in ("w", "b")}
    p, state = start, tx.init(start)
    for g in GS:
        u, state = tx.update({k: jnp.asarray(g, dtype) for k in p}, state, p)
        p = stepax.apply_updates(p, u)
    x = evaluate(state, p)
    assert jax.tree.map(lambda a: a.dtype, x) == jax.tree.map(lambda a: a.dtype, p)
    assert not np.array_equal(x["w"], p["w"])
    assert np.isfinite(np.asarray(x["w"], np.float32)).all()
    assert np.array_equal(x["b"], p["b"]) == (where == "masked")
