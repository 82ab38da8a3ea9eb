"""`MultiSteps` and gradients that are not finite: what is lost, and what is not."""

import functools as ft

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import types
from runs import (
    K,
    compare,
    eager,
    equal,
    everyhow,
    many,
    parameters,
    scanned,
    with_value,
)

import stepax
from stepax import MultiSteps, skip_large_updates, skip_not_finite


@pytest.mark.few(1)
@everyhow
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("at", [0, K - 1])
def test_a_bad_gradient_costs_one_window_and_no_more(run, value, at):
    p, gs = parameters(), many(2 * K)
    tx = MultiSteps(stepax.scale(-1.0), K)
    u, state = run(tx, with_value(gs, at, value), p)
    v, wanted = run(tx, gs, p)
    compare(equal, jax.tree.map(lambda x: x[K:], u), jax.tree.map(lambda x: x[K:], v))
    compare(equal, state, wanted)
    for x in jax.tree.leaves(u):
        assert not x[: K - 1].any()
    spoilt = ~np.isfinite(u["w"][K - 1])
    assert spoilt.sum() == 1 and spoilt[0, 1]


GUARDED = {
    "chain": lambda o: o.chain(o.zero_nans(), o.adam(1e-2)),
    "nested": lambda o: o.chain(o.chain(o.zero_nans()), o.clip(1.0), o.adam(1e-2)),
    "named": lambda o: o.named_chain(("nans", o.zero_nans()), ("adam", o.adam(1e-2))),
    "masked": lambda o: o.chain(
        o.masked(o.zero_nans(), {"w": True, "b": False}), o.adam(1e-2)
    ),
    "alone": lambda o: o.zero_nans(),
}
guarded = pytest.mark.parametrize("inner", GUARDED.values(), ids=GUARDED)


@pytest.mark.few(1)
@everyhow
@guarded
@pytest.mark.parametrize("at", [0, K - 1])
def test_zero_nans_makes_a_nan_cost_one_number(run, inner, at):
    p, gs = parameters(), many(2 * K)
    tx = MultiSteps(inner(stepax), K)
    u, state = run(tx, with_value(gs, at, np.nan), p)
    v, wanted = run(tx, with_value(gs, at, 0.0), p)
    compare(equal, u, v)
    compare(equal, state, wanted)  # nothing was found in the second window


@pytest.mark.few(1)
@everyhow
def test_found_nan_tells_of_all_gradients_since_the_last_step(run):
    p, tx = (
        parameters(),
        MultiSteps(stepax.chain(stepax.zero_nans(), stepax.scale(1.0)), K),
    )
    gs = with_value(many(2 * K), 1, np.nan)
    found = []
    for n in range(1, 2 * K + 1):
        _, state = run(tx, gs[:n], p)
        flags = state.inner_opt_state[0].found_nan
        assert not flags["b"]
        found.append(bool(flags["w"]))
    assert found == [False, True, True, False, False, False]


def test_infinities_that_cancel_are_found_at_the_step():
    tx = MultiSteps(stepax.zero_nans(), 2)
    u, state = eager(tx, [jnp.array([np.inf]), jnp.array([-np.inf])], jnp.ones(1))
    equal(u, np.zeros((2, 1)))
    assert bool(state.inner_opt_state.found_nan)


@pytest.mark.slow
@everyhow
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_skipped_gradient_is_as_if_it_had_not_been(run, value):
    p, gs = parameters(), many(2 * K)
    tx = MultiSteps(stepax.adam(1e-2), K, should_skip_update_fn=skip_not_finite)
    more = [*gs[:1], *with_value(gs[:1], 0, value), *gs[1:]]
    u, state = run(tx, more, p)
    v, wanted = run(tx, gs, p)
    compare(equal, jax.tree.map(lambda x: jnp.delete(x, 1, 0), u), v)
    compare(equal, state, wanted)
    assert not any(x[1].any() for x in jax.tree.leaves(u))


def test_skip_state_tells_why():
    tx = MultiSteps(stepax.scale(1.0), 2, should_skip_update_fn=skip_not_finite)
    p = parameters()
    state = tx.init(p)
    seen = []
    for g in with_value(many(3), 1, np.nan):
        _, state = tx.update(g, state, p)
        seen.append(jax.tree.map(int, (state.skip_state, state.mini_step)))
    fine, bad = ({"should_skip": n, "num_not_finite": n} for n in (0, 1))
    assert seen == [(fine, 1), (bad, 1), (fine, 0)]


SIZES = [0.0, 0.9, 1.0, 1.1, np.inf, np.nan]


@pytest.mark.parametrize("size", SIZES)
def test_skip_functions_decide_as_optax_s(size):
    g, step = {"w": jnp.array([size, 0.0]), "b": jnp.zeros(2)}, jnp.int32(0)
    pairs = [
        (skip_not_finite, optax.skip_not_finite),
        (
            ft.partial(skip_large_updates, max_squared_norm=1.0),
            ft.partial(optax.skip_large_updates, max_squared_norm=1.0),
        ),
    ]
    for ours, theirs in pairs:
        found, wanted = ours(g, step, None), theirs(g, step, None)
        assert jax.tree.structure(found) == jax.tree.structure(wanted)
        assert types(found) == types(wanted)
        compare(equal, found, wanted)


def test_whatever_a_skip_function_returns_becomes_a_carry():
    def skip(updates, gradient_step, params):
        return updates["b"][0] > 9, {"step": gradient_step, "x": 1.0, "again": updates}

    p = parameters()
    tx = MultiSteps(stepax.scale(1.0), 2, should_skip_update_fn=skip)
    first = tx.init(p)
    _, state = scanned(tx, many(4), p)
    assert types(state) == types(first)
    buffers = [x.unsafe_buffer_pointer() for x in jax.tree.leaves((p, first))]
    assert len(set(buffers)) == len(buffers)


def injected(inner):
    """`inner` beside a hyperparameter."""
    make = lambda rate: stepax.chain(inner, stepax.scale(rate))
    return stepax.inject_hyperparams(make)(rate=-0.5)


def scheduled(inner):
    make = lambda rate: stepax.chain(inner, stepax.scale(rate))
    return stepax.inject_hyperparams(make)(rate=stepax.linear_schedule(-1.0, -0.5, 9))


AROUND = {
    "injected": injected,
    "scheduled": scheduled,
    "injected twice": lambda tx: injected(injected(tx)),
    "behind a clip": lambda tx: stepax.chain(stepax.clip(1.0), tx),
    "behind a norm": lambda tx: stepax.chain(stepax.clip_by_global_norm(0.1), tx),
    "behind momentum": lambda tx: stepax.chain(stepax.trace(0.9), tx),
    "behind a monitor": lambda tx: stepax.chain(
        stepax.monitor({"norm": stepax.tree.norm}), tx
    ),
    "named, last": lambda tx: stepax.named_chain(("a", stepax.adam(1e-2)), ("b", tx)),
    "masked": lambda tx: stepax.chain(
        stepax.scale(2.0), stepax.masked(tx, {"w": True, "b": False})
    ),
    "in a partition": lambda tx: stepax.partition(
        {"w": stepax.chain(stepax.adam(1e-2), tx), "b": stepax.sgd(0.1)},
        {"w": "w", "b": "b"},
    ),
    "masked, injected": lambda tx: stepax.masked(injected(tx), {"w": True, "b": False}),
    "with masters": lambda tx: stepax.master_weights(
        stepax.chain(stepax.clip(1.0), tx)
    ),
    "rounded": lambda tx: stepax.stochastic_rounding(injected(tx), 0),
    "observed": lambda tx: stepax.observe(tx, {}),
    "averaged": lambda tx: stepax.averages(injected(tx), 0.9),
    "state in half": lambda tx: stepax.with_state_dtypes(
        stepax.chain(stepax.trace(0.9), tx), {"trace": jnp.bfloat16}
    ),
    "twice": lambda tx: stepax.chain(stepax.zero_nans(), stepax.clip(1.0), tx),
    "accumulated twice": lambda tx: MultiSteps(tx, 1).gradient_transformation(),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
@pytest.mark.parametrize("use_grad_mean", [True, False])
def test_zero_nans_cleans_each_gradient_wherever_it_is(around, use_grad_mean):
    p, gs = parameters(), many(2 * K)
    tx = MultiSteps(around(stepax.zero_nans()), K, use_grad_mean)
    for at in 0, K - 1:
        u, state = eager(tx, with_value(gs, at, np.nan), p)
        v, wanted = eager(tx, with_value(gs, at, 0.0), p)
        compare(equal, u, v)
        compare(equal, state, wanted)  # nothing was found in the second window
        assert types(state) == types(tx.init(p))
    _, marked = eager(tx, with_value(gs[:K], 1, np.nan), p)
    flags = [
        np.asarray(x)
        for path, x in stepax.tree.get_all_with_path(marked, "found_nan")
        for x in jax.tree.leaves(x)
    ]
    assert sum(flags) >= 1


def test_what_judges_gradients_sees_them_as_they_are():
    p, gs = parameters(), with_value(many(K), 0, np.nan)
    tx = MultiSteps(stepax.apply_if_finite(stepax.zero_nans(), 3), K)
    u, state = eager(tx, gs, p)
    assert not any(x.any() for x in jax.tree.leaves(u))
    assert state.inner_opt_state.total_notfinite == 1
