"""`schedule_free` averages iterates in place of a falling learning rate."""

import functools as ft
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import types
from runs import compare, compilations

import stepax
from stepax.contrib import (
    schedule_free_adamw,
    schedule_free_eval_params,
    schedule_free_sgd,
)


schedule_free: Any = stepax.contrib.schedule_free
STEPS = 200
SCALE = np.array([4.0, 1.0, 0.25])


def start(dtype=jnp.float32):
    return {"w": jnp.asarray([1.0, -2.0, 0.5], dtype), "b": jnp.ones([], dtype)}


def gradient(p, i):
    scale, i = jnp.asarray(SCALE, p["w"].dtype), jnp.asarray(i, p["w"].dtype)
    return {"w": scale * p["w"] + jnp.cos(i), "b": p["b"] - 1 / 3}


def drive(tx, p, evaluate=schedule_free_eval_params, steps=STEPS):
    """Parameters, those for evaluation, and the state, of all steps."""

    def step(carry, i):
        p, state = carry
        u, state = tx.update(gradient(p, i), state, p)
        p = jax.tree.map(jnp.add, p, u)
        return (p, state), (p, evaluate(state, p), state)

    return jax.lax.scan(step, (p, tx.init(p)), jnp.arange(steps))[1]


def flat(tree):
    return np.column_stack([tree["w"], tree["b"]])


def reference(rate, warmup, b1, b2, eps, decay, power):
    """The authors' AdamW, written from their description, in NumPy: y and x."""
    y = z = x = np.array([1.0, -2.0, 0.5, 1.0])
    nu, weight_sum, rate_max, out = 0.0, 0.0, 0.0, []
    for k in range(STEPS):
        g = np.append(SCALE * y[:3] + np.cos(k), y[3] - 1 / 3)
        now = rate * min(1.0, (k + 1) / warmup)
        rate_max = max(rate_max, now)
        weight_sum += rate_max**power
        c = rate_max**power / weight_sum
        nu = b2 * nu + (1 - b2) * g**2
        u = g / (np.sqrt(nu / (1 - b2 ** (k + 1))) + eps) + decay * y
        z = z - now * u
        x = (1 - c) * x + c * z
        y = b1 * x + (1 - b1) * z
        out.append((y, x))
    return map(np.stack, zip(*out, strict=True))


@pytest.mark.parametrize("power", [0.0, 2.0])
def test_steps_are_those_of_the_authors(power, x64):
    # The warm-up is float32, and every step of this one is exact.
    given = 2.0**-3, 8, 0.8, 0.95, 0.1, 0.1, power
    tx = schedule_free_adamw(*given, first_step=1)
    found = drive(tx, start(jnp.float64))
    wanted = reference(*given)
    for ours, theirs in zip(found[:2], wanted, strict=True):
        np.testing.assert_allclose(flat(ours), theirs, rtol=1e-11, atol=1e-11)


PAIRS = {
    "sgd": lambda home: home.contrib.schedule_free_sgd(0.1),
    "sgd, warm-up and decay": lambda home: home.contrib.schedule_free_sgd(
        0.1, 10, 0.8, 0.1, 1.0
    ),
    "adamw": lambda home: home.contrib.schedule_free_adamw(0.1, weight_decay=0.1),
    "adamw, warm-up": lambda home: home.contrib.schedule_free_adamw(0.1, 10),
    "adam": lambda home: home.contrib.schedule_free(
        home.adam(0.1, b1=0.0), lambda t: 0.1 / t, 0.95
    ),
}


def theirs(name, dtype):
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        tx = PAIRS[name](optax)
        return drive(tx, start(dtype), optax.contrib.schedule_free_eval_params)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", PAIRS)
def test_all_is_optax_s_to_rounding(name, x64):
    """In double precision, the rounding of 200 steps and of x, which Optax divides."""
    found, wanted = drive(PAIRS[name](stepax), start(jnp.float64)), theirs(name, float)
    assert types(found) == types(wanted)
    close = lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=1e-13)
    compare(close, found, wanted)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["sgd", "adamw, warm-up"])
def test_float32_is_rounded_less_than_by_optax(name):
    found = drive(PAIRS[name](stepax), start())
    wanted = theirs(name, jnp.float32)
    assert types(found) == types(wanted)
    with jax.enable_x64(True):
        exact = drive(PAIRS[name](stepax), start(jnp.float64))
    for part in (0, 1):
        errors = [np.abs(flat(x[part]) - flat(exact[part])) for x in (found, wanted)]
        assert errors[0].mean() < errors[1].mean()


def test_with_equal_weights_x_is_the_mean_of_z(x64):
    tx = schedule_free(stepax.sgd(0.1), 0.1, weight_lr_power=0.0)
    p, x, states = drive(tx, start(jnp.float64))
    number = np.arange(1, STEPS + 1)[:, None]
    mean = np.cumsum(flat(states.z), axis=0) / number
    np.testing.assert_allclose(flat(x), mean, rtol=1e-12, atol=1e-15)
    between = 0.9 * mean + 0.1 * flat(states.z)
    np.testing.assert_allclose(flat(p), between, rtol=1e-12, atol=1e-15)


def test_with_b1_of_1_gradients_are_taken_at_the_mean(x64):
    tx = schedule_free(stepax.sgd(0.1), 0.1, b1=1.0)
    p, x, _ = drive(tx, start(jnp.float64))
    np.testing.assert_allclose(flat(p), flat(x), rtol=1e-14, atol=1e-16)


@pytest.mark.parametrize("first", [0, 1])
def test_weights_count_from_1_and_the_base_from_first_step(first):
    seen = {"weights": [], "base": []}

    def rate(name, count):
        seen[name].append(int(count))
        return 0.1

    p = start()
    tx = schedule_free_sgd(ft.partial(rate, "base"), first_step=first)
    state = tx.init(p)
    for _ in range(2):
        _, state = tx.update(p, state, p)
    assert sorted(seen["base"]) == sorted([first, 1, first + 1, 2])
    tx = schedule_free(stepax.sgd(0.1), ft.partial(rate, "weights"))
    tx.update(p, tx.init(p), p)
    assert seen["weights"] == [1]


def test_a_rate_of_0_changes_nothing():
    p = start()
    tx = schedule_free_sgd(0.0)
    u, state = tx.update(p, tx.init(p), p)
    assert not any(x.any() for x in jax.tree.leaves(u))
    compare(np.testing.assert_array_equal, schedule_free_eval_params(state, p), p)


def test_a_warm_up_of_0_steps_is_none():
    p = start()
    tx, plain = schedule_free_sgd(0.1, 0), schedule_free_sgd(0.1)
    u, v = tx.update(p, tx.init(p), p)[0], plain.update(p, plain.init(p), p)[0]
    compare(np.testing.assert_array_equal, u, v)


def test_x_of_parameters_that_never_moved_is_exact():
    p = {"w": jnp.asarray(np.random.default_rng(0).normal(size=99), jnp.float32)}
    state = schedule_free_sgd().init(p)
    np.testing.assert_array_equal(schedule_free_eval_params(state, p)["w"], p["w"])


def wrapped():
    tx = schedule_free_sgd(0.1)
    labels = {"w": "free", "b": "plain"}
    return {
        "chain": (stepax.chain(stepax.clip(9.0), tx), {"w", "b"}),
        "MultiSteps": (stepax.MultiSteps(tx, 2), {"w", "b"}),
        "masked": (stepax.masked(tx, {"w": True, "b": False}), {"w"}),
        "partition": (
            stepax.partition({"free": tx, "plain": stepax.sgd(0.1)}, labels),
            {"w"},
        ),
        "two": (stepax.partition({"free": tx, "plain": tx}, labels), {"w", "b"}),
    }


@pytest.mark.few(2)
@pytest.mark.parametrize("name", wrapped())
def test_parameters_for_evaluation_are_found_in_other_states(name):
    tx, free = wrapped()[name]
    p = start()
    p = {**p, "b": {"x": p["b"], "y": p["b"]}}  # of which a mask leaves one node
    g, state = p, tx.init(p)
    for _ in range(2):
        u, state = tx.update(g, state, p)
        p = stepax.apply_updates(p, u)
    found = schedule_free_eval_params(state, p)
    differs = lambda x, y: bool((x != y).any())
    for key in p:
        # After one step, which is all that `MultiSteps` has taken, x is y.
        expected = key in free and name != "MultiSteps"
        differing = jax.tree.map(differs, found[key], p[key])
        assert set(jax.tree.leaves(differing)) == {expected}


def test_it_runs_inside_multi_steps():
    tx, p = schedule_free_adamw(0.1, 5), start()
    several = stepax.MultiSteps(tx, 2)
    (q, s), (r, t) = (p, tx.init(p)), (p, several.init(p))
    for i in range(6):
        g = gradient(p, i)
        u, s = tx.update(g, s, q)
        q = stepax.apply_updates(q, u)
        for part in (0.5, 1.5):
            half = jax.tree.map(lambda g, part=part: part * g, g)
            u, t = several.update(half, t, r)
            r = stepax.apply_updates(r, u)
    close = lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
    compare(close, (q, s), (r, t.inner_opt_state))


def test_numbers_of_narrow_and_complex_parameters_are_real_float32():
    for dtype, wanted in (("bfloat16", "float32"), ("complex64", "complex64")):
        p = {"w": jnp.ones(2, dtype)}
        tx = schedule_free_sgd(0.1, state_dtype=wanted)
        state = tx.init(p)
        u, new = tx.update(p, state, p)
        assert types(new) == types(state)
        assert new.z["w"].dtype == wanted and u["w"].dtype == dtype
        assert {x.dtype.name for x in new[:4]} == {"float32", "int32"}
        assert schedule_free_eval_params(new, p)["w"].dtype == dtype


def test_a_thousand_narrow_steps_are_averaged():
    """A sum of weights in bfloat16 stops at 256 of them, as Optax's does."""
    tx = schedule_free(stepax.sgd(0.0), 1.0)
    p = {"w": jnp.ones(1, jnp.bfloat16)}
    step = lambda s, _: (tx.update(p, s, p)[1], None)
    state = jax.lax.scan(step, tx.init(p), length=1000)[0]
    assert float(state.weight_sum) == 1000.0


def test_leaves_without_gradients_stay():
    p = {"w": jnp.ones(2), "n": jnp.arange(2), "f": jnp.tanh, "still": jnp.ones(1)}
    g = {"w": jnp.ones(2), "n": np.zeros(2, jax.dtypes.float0), "f": None}
    g["still"] = None
    tx = schedule_free_adamw(0.1)
    state = tx.init(p)
    u, new = tx.update(g, state, p)
    assert types(new) == types(state)
    moved = stepax.apply_updates(p, u)
    x = schedule_free_eval_params(new, moved)
    for found in (moved, x):
        assert found["n"].tolist() == [0, 1] and found["f"] is jnp.tanh
        assert found["still"].tolist() == [1.0]
    assert (moved["w"] < 1).all()


def test_nothing_is_compiled_after_the_first_step():
    tx, p = schedule_free_adamw(0.1, 5), start()
    _, state = tx.update(p, tx.init(p), p)
    with compilations() as compiled:
        tx.update(p, state, p)
    assert not compiled


def test_it_finds_the_minimum_without_a_schedule():
    tx = schedule_free_sgd(0.3)
    noise = lambda i: 3 * jnp.cos(1.7 * jnp.asarray(i, jnp.float32))

    def step(carry, i):
        p, state = carry
        g = jnp.asarray(SCALE, p.dtype) * (p - 1) + noise(i)
        u, state = tx.update(g, state, p)
        return (p + u, state), None

    p = jnp.zeros(3)
    (p, state), _ = jax.lax.scan(step, (p, tx.init(p)), jnp.arange(2000))
    x = schedule_free_eval_params(state, p)
    np.testing.assert_allclose(x, 1.0, atol=0.02)


def test_errors_say_what_is_expected():
    tx, p = schedule_free_sgd(0.1), start()
    with pytest.raises(ValueError, match="`params` is missing"):
        tx.update(p, tx.init(p))
    with pytest.raises(ValueError, match="`schedule_free` needs a state `Sch.*a tuple"):
        tx.update(p, (), p)
    with pytest.raises(ValueError, match="_eval_params` needs a state.*a tuple of 1"):
        schedule_free_eval_params((stepax.EmptyState(),), p)
    with pytest.raises(ValueError, match=r"\(2,\) at \['w'\], but `z` .* \(3,\)"):
        schedule_free_eval_params(tx.init(p), {**p, "w": jnp.ones(2)})
    with pytest.raises(ValueError, match=r"`params` and `z` differ.*\['b'\]"):
        schedule_free_eval_params(tx.init(p), {"w": p["w"]})
    with pytest.raises(ValueError, match=r"`b1` must be above 0|in \(0, 1\]"):
        schedule_free_adamw(0.1, b1=0.0)
    with pytest.raises(ValueError, match="is a schedule and `warmup_steps` is given"):
        schedule_free_sgd(lambda t: 0.1, 5)
    with pytest.raises(TypeError, match=r"`base_optimizer` of `schedule_free` .*`sgd"):
        schedule_free(stepax.sgd, 0.1)
