"""`rollback` returns to its copies when the loss stays high, and goes on from there."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import types
from wrappers import FAMILIES

import stepax


OPTIONS: Any = {"every": 4, "factor": 2.0, "patience": 2, "window": 8}
QUIET = [1.0, 1.1, 0.9, 1.0, 1.2, 1.0, 0.9, 1.1]
NAN = float("nan")
# The losses after 8 quiet steps, and whether each call returns.
SPIKES = {
    "quiet": ([1.0, 1.1, 1.0], [0, 0, 0]),
    "one": ([9.0, 1.0, 9.0], [0, 0, 0]),
    "two": ([9.0, 9.0, 1.0], [0, 1, 0]),
    "NaN": ([1.0, NAN, NAN], [0, 0, 1]),
    "infinite": ([float("inf"), NAN, 1.0], [0, 1, 0]),
    "for good": ([9.0, 9.0, 9.0, 9.0], [0, 1, 0, 1]),
    "at the bound": ([2.0, 2.2, 2.2], [0, 0, 1]),
}
DTYPES = {"float32": 1.0, "bfloat16": 1.0, "far": 1e9}


def problem(dtype="float32", size=1.0):
    rng = np.random.default_rng(0)
    draw = lambda *lead: {
        "w": jnp.asarray(rng.normal(size=(*lead, 3, 2)), dtype),
        "b": jnp.asarray(rng.normal(size=(*lead, 2)), dtype),
    }
    return draw(), jax.tree.map(lambda x: size * x, draw(24))


def at(tree, i):
    return jax.tree.map(lambda x: x[i], tree)


def by_step(tx):
    return jax.jit(lambda p, s, g, v: stepax.step(tx, g, s, p, value=v))


def by_update(tx):
    @jax.jit
    def run(p, s, g, v):
        u, s = tx.update(g, s, p, value=v)
        return stepax.apply_updates(p, u), s

    return run


WAYS = {"step": by_step, "update": by_update}


def same_bits(found, wanted):
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True)
    return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs)


@pytest.mark.parametrize("case", SPIKES)
def test_it_returns_when_the_value_stays_high(case):
    late, wanted = SPIKES[case]
    tx = stepax.rollback(stepax.sgd(0.1), **OPTIONS)
    p, gs = problem()
    state, run, found = tx.init(p), by_step(tx), []
    first = types(state)
    for i, value in enumerate(QUIET + late):
        before = state.returns
        p, state = run(p, state, at(gs, i), value)
        found.append(int(state.returns - before))
        assert types(state) == first
    assert found == [0] * len(QUIET) + wanted


@pytest.mark.few(2)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("way", WAYS)
def test_it_goes_on_as_a_run_restarted_from_its_copies(way, family):
    """Copies are made before the steps 0, 4 and 8; the values of 9 and 10 are high."""
    inner = stepax.chain(FAMILIES[family](), stepax.scale(1.0))
    tx, (p, gs) = stepax.rollback(inner, **OPTIONS), problem()
    state, run = tx.init(p), WAYS[way](tx)
    kept = None
    for i in range(11):
        if i == 8:
            kept = p, state
        p, state = run(p, state, at(gs, i), 1.0 if i < 9 else 9.0)
    assert kept is not None and int(state.returns) == 1
    calls = 0
    while not same_bits(p, kept[0]):
        assert way == "update" and calls < 3
        calls += 1
        p, state = run(p, state, at(gs, 20), 50.0)
    other, restarted = kept
    assert same_bits(state.inner_state, restarted.inner_state)
    for i in range(11, 14):
        p, state = run(p, state, at(gs, i), 1.0)
        other, restarted = run(other, restarted, at(gs, i), 1.0)
        assert same_bits((p, state.inner_state), (other, restarted.inner_state))
    assert int(state.returns) == 1


@pytest.mark.parametrize("case", DTYPES)
def test_updates_restore_numbers_of_any_size(case):
    """Nine orders of magnitude lie between the parameters and those they return to."""
    dtype = "bfloat16" if case == "bfloat16" else "float32"
    tx = stepax.rollback(stepax.sgd(DTYPES[case]), **OPTIONS)
    p, gs = problem(dtype)
    state, run = tx.init(p), by_update(tx)
    kept = p
    p, state = run(p, state, at(gs, 0), 1.0)
    for i in range(1, 3):
        p, state = run(p, state, at(gs, i), 1e9)
    calls = 0
    while not same_bits(p, kept):
        p, state = run(p, state, at(gs, 3), 1e9)
        calls += 1
        assert calls <= 3
    assert int(state.returns) == 1


def test_step_restores_what_no_update_can():
    tx = stepax.rollback(stepax.sgd(1.0), **OPTIONS)
    p = {"w": jnp.array([1.0, -0.0, 3.0])}
    state, run, kept = tx.init(p), by_step(tx), p
    p, state = run(p, state, {"w": jnp.array([0.5, 1.0, 0.0])}, 1.0)
    p, state = run(p, state, {"w": jnp.array([NAN, jnp.inf, 1.0])}, NAN)
    assert not jnp.isfinite(p["w"]).all()
    p, state = run(p, state, {"w": jnp.full(3, NAN)}, NAN)
    assert same_bits(p, kept)


def test_what_is_not_trained_is_left_alone():
    p = {"w": jnp.ones(2), "f": jnp.tanh, "n": None}
    g = {"w": jnp.ones(2), "f": None, "n": None}
    tx = stepax.rollback(stepax.sgd(1.0), patience=1)
    state = tx.init(p)
    new, state = stepax.step(tx, g, state, p, value=1.0)
    new, state = stepax.step(tx, g, state, new, value=NAN)
    assert new["f"] is jnp.tanh and same_bits(new["w"], p["w"])
    u, state = tx.update(g, state, {**p, "w": p["w"] + 1}, value=NAN)
    assert (u["w"] == -1).all() and u["f"] is None


def test_the_state_is_read_by_path():
    tx, (p, _) = stepax.rollback(stepax.adamw(1e-2)), problem()
    state = tx.init(p)
    assert stepax.tree.get(state, "inner_state/**/mu/w").shape == (3, 2)
    assert stepax.tree.get(state, "kept_params") is state.kept_params
    assert "rollback" in str(stepax.describe(tx, p))


REFUSED = {
    "pass them": lambda tx, g, s: tx.update(g, s, value=1.0),
    "reads the keyword `value`": lambda tx, g, s: tx.update(g, s, g),
    "expected a real scalar": lambda tx, g, s: tx.update(g, s, g, value=jnp.ones(2)),
}


@pytest.mark.parametrize("words", REFUSED)
def test_wrong_calls_are_refused(words):
    tx, (p, _) = stepax.rollback(stepax.adamw(1e-2)), problem()
    with pytest.raises((TypeError, ValueError), match=words):
        REFUSED[words](tx, p, tx.init(p))
