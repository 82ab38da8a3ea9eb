"""Schedules at every count, and what reads the loss to choose a rate."""

import importlib
import inspect

import jax
import jax.numpy as jnp
import library
import numpy as np
import pytest
from library import optax

from stepax import schedules


row = pytest.mark.row

# By the names of arguments, as in `cases`.
ARGUMENTS = {
    "value": 0.3,
    "init_value": 0.03,
    "peak_value": 0.3,
    "end_value": 0.001,
    "power": 1.5,
    "decay_rate": 0.8,
    "transition_steps": 7,
    "decay_steps": 20,
    "warmup_steps": 3,
    "interpolate_type": "cosine",
    "boundaries_and_scales": {3: 0.5, 9: 0.1},
    "boundaries": [3],
    "schedules": lambda: [optax.linear_schedule(0.0, 0.3, 3), lambda t: 0.3 + 0 * t],
    "cosine_kwargs": lambda: [
        {"init_value": 0.0, "peak_value": 0.3, "warmup_steps": 2, "decay_steps": 9}
    ],
}


def factories():
    """What makes a function of a count, here and in Optax."""
    theirs = importlib.import_module("optax.schedules")
    found = {
        name: f
        for name, f in vars(schedules).items()
        if inspect.isfunction(f) and hasattr(theirs, name) and "inject" not in name
    }
    return {
        name: inspect.signature(f).parameters
        for name, f in sorted(found.items())
        if not name.startswith("_")
    }


FACTORIES = factories()
every = pytest.mark.parametrize("name", FACTORIES)


def make(name, **more):
    needed = [k for k, p in FACTORIES[name].items() if p.default is p.empty]
    if "boundaries_and_scales" in FACTORIES[name]:
        needed.append("boundaries_and_scales")
    given = {k: ARGUMENTS[k] for k in needed} | more
    made = {k: x() if callable(x) else x for k, x in given.items()}
    return getattr(optax, name)(**made)


LAST = 2**31 - 1


@pytest.mark.slow
@row("schedule edge cases", optax="fails")
@every
def test_a_schedule_is_a_number_at_any_count_of_any_kind(name):
    schedule = make(name)
    counts = [0, 1, 7, 21, LAST]
    values = np.array([schedule(jnp.int32(t)) for t in counts], "float32")
    assert np.isfinite(values).all()
    traced = jax.jit(schedule)
    # A program is fused, and an array computed, by itself: a few roundings.
    close = lambda x: np.testing.assert_allclose(x, values, rtol=1e-5, atol=1e-7)
    close([traced(jnp.int32(t)) for t in counts])
    close(schedule(jnp.array(counts)))
    close(jax.vmap(schedule)(jnp.array(counts)))
    close([schedule(t) for t in counts])


STEPS = [
    (name, key) for name, keys in FACTORIES.items() for key in keys if "steps" in key
]


@pytest.mark.few(1)
@row("schedule edge cases", optax="fails")
@pytest.mark.parametrize(("name", "key"), STEPS)
def test_a_phase_without_steps_is_absent(name, key):
    more = {"decay_steps": 0} if key == "decay_steps" else {key: 0}
    needs_one = "onecycle" in name or name == "cosine_decay_schedule"
    if needs_one or (key == "decay_steps" and "warmup_steps" in FACTORIES[name]):
        more = {key: 4}  # no schedule without a step, as in Optax
    schedule = make(name, **more)
    values = np.array([schedule(jnp.int32(t)) for t in (0, 1, 2, 30)], "float32")
    assert np.isfinite(values).all()
    if key == "warmup_steps":
        np.testing.assert_allclose(values[0], 0.3, rtol=1e-6)
        assert (np.diff(values) <= 0).all()


@pytest.mark.slow
@row("schedule edge cases", optax="passes")
@pytest.mark.parametrize("name", [x for x in FACTORIES if "onecycle" in x])
@pytest.mark.parametrize("steps", [3, 4, 5])
def test_few_steps_make_a_cycle(name, steps):
    values = [make(name, transition_steps=steps)(t) for t in range(steps + 3)]
    assert np.isfinite(values).all() and max(values) <= 0.3001


@row("Bugs found by us 4", optax="fails")
def test_a_warm_up_of_no_steps_is_at_its_peak():
    schedule = optax.warmup_constant_schedule(0.0, 0.3, 0)
    for t in (0, 1, 100):
        np.testing.assert_allclose(schedule(t), 0.3, rtol=1e-6)


@row("schedule naming and docs", optax="passes")
@pytest.mark.parametrize(
    "name", [k for k, p in FACTORIES.items() if "warmup_steps" in p]
)
def test_a_warm_up_is_a_line_to_its_peak(name):
    values = [make(name, warmup_steps=4)(jnp.int32(t)) for t in range(5)]
    wanted = 0.03 + (0.3 - 0.03) * np.arange(5) / 4
    np.testing.assert_allclose(values, wanted, rtol=1e-5)


@row("schedule naming and docs", optax="passes")
def test_steps_of_the_decay_include_the_warm_up_of_a_cosine_only():
    make = optax.warmup_cosine_decay_schedule
    np.testing.assert_allclose(make(0.0, 0.3, 5, 20, 0.01)(20), 0.01, rtol=1e-6)
    later = optax.warmup_exponential_decay_schedule(0.0, 0.3, 5, 20, 0.5)
    np.testing.assert_allclose(later(25), 0.15, rtol=1e-6)


@row("schedule naming and docs", optax="passes")
@every
def test_names_of_schedules_are_also_in_their_module(name):
    assert getattr(optax.schedules, name) is getattr(optax, name)


def steps(tx, gradients, params):
    state = tx.init(params)
    for g in gradients:
        u, state = tx.update(g, state, params, value=jnp.float32(1.0))
        params = optax.apply_updates(params, u)
    return params, state


SHORTCUTS = [x for x in library.rows(kind="optimizer") if "schedule_free" in str(x.id)]


@row("schedule_free", optax="passes")
@pytest.mark.parametrize("row", SHORTCUTS)
def test_a_schedule_is_read_from_step_1_on(row):
    """The reference counts its weights from 1, and Optax's tests demand it."""
    seen = []

    def rate(t):
        seen.append(int(t))
        return 0.1

    tx = optax.contrib.schedule_free(optax.sgd(0.1), rate)
    steps(tx, [jnp.ones(3)] * 3, jnp.ones(3))
    assert sorted(set(seen)) == [1, 2, 3]


@row("schedule_free", optax="passes")
@pytest.mark.parametrize("row", SHORTCUTS)
def test_schedule_free_learns_in_windows(row):
    home = optax if hasattr(optax, row.name) else optax.contrib
    tx = getattr(home, row.name)(0.1, warmup_steps=0)
    multi = optax.MultiSteps(tx, 2)
    g, p = jnp.array([1.0, -2.0, 0.5]), jnp.ones(3)
    alone, _ = steps(tx, [g] * 3, p)
    found, state = steps(multi, [g] * 6, p)
    np.testing.assert_allclose(found, alone, rtol=1e-5)
    inner = state.inner_opt_state
    x = optax.contrib.schedule_free_eval_params(inner, found)
    assert np.isfinite(x).all()


@pytest.mark.few(1)
@row("reduce_on_plateau", optax="fails")
@pytest.mark.parametrize("offset", [100.0, 0.0, -100.0])
def test_losses_of_any_sign_may_improve(offset):
    tx = optax.contrib.reduce_on_plateau(factor=0.5, patience=2, rtol=1e-2)
    g, state = jnp.ones(3), tx.init(jnp.ones(3))
    for i in range(6):  # by far more than the margin
        _, state = tx.update(g, state, value=jnp.float32(offset - 5.0 * i))
    assert float(state.scale) == 1.0
    for _ in range(4):
        _, state = tx.update(g, state, value=jnp.float32(offset - 25.0))
    assert float(state.scale) == 0.25


@row("reduce_on_plateau", optax="fails")
def test_falling_by_less_than_the_margin_is_a_plateau_below_0_too():
    tx = optax.contrib.reduce_on_plateau(factor=0.5, patience=3, rtol=0.1)
    g, state = jnp.ones(3), tx.init(jnp.ones(3))
    for i in range(8):
        _, state = tx.update(g, state, value=jnp.float32(-100.0 - 0.1 * i))
    assert float(state.scale) < 1.0


@row("reduce_on_plateau", optax="passes")
def test_the_plateau_is_kept_in_a_chain_and_under_jit():
    tx = optax.chain(optax.sgd(1.0), optax.contrib.reduce_on_plateau(0.5, 2))
    step = jax.jit(lambda s, v: tx.update(jnp.ones(3), s, value=v))
    u, state = step(tx.init(jnp.ones(3)), jnp.float32(1.0))
    for _ in range(2):
        u, state = step(state, jnp.float32(1.0))
    np.testing.assert_array_equal(u, -0.5)


@row("training on with another schedule", optax="fails")
@pytest.mark.parametrize("shape", ["linear", "sqrt", "cosine"])
def test_a_plateau_is_left_by_a_decay_of_some_shape(shape):
    """AI-Hypercomputer/maxtext#2883."""
    schedule = optax.schedules.warmup_stable_decay_schedule(
        0.3, 4, 6, 5, 0.0, 0.01, shape=shape
    )
    values = np.array([schedule(t) for t in range(20)], "float32")
    assert (values[4:11] == np.float32(0.3)).all()
    assert (np.diff(values[10:16]) < 0).all() and (values[15:] == 0.01).all()


@row("training on with another schedule", optax="passes")
@pytest.mark.parametrize("wrap", ["alone", "injected", "accumulated"])
def test_a_saved_state_goes_on_under_another_schedule(wrap):
    """PrimeIntellect-ai/prime-rl#1095, pytorch/pytorch#180200: at the saved count."""
    params = {"w": jnp.ones(2)}
    before, after = optax.linear_schedule(0.1, 0.1, 1), optax.linear_schedule(1, 0, 8)

    def make(schedule):
        if wrap == "injected":
            return optax.inject_hyperparams(optax.sgd)(schedule)
        tx = optax.sgd(schedule)
        return optax.MultiSteps(tx, 1) if wrap == "accumulated" else tx

    state = make(before).init(params)
    for _ in range(3):
        _, state = make(before).update(params, state, params)
    updates, _ = make(after).update(params, state, params)
    np.testing.assert_allclose(updates["w"], -after(3), rtol=1e-6)
