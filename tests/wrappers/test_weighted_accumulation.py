"""Accumulated gradients count by their weights, such as their numbers of tokens."""

import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import types
from jax.sharding import PartitionSpec as P
from runs import close, compare, eager, equal, jitted, many, parameters

import stepax
from stepax import (
    MultiSteps,
    MultiStepsState,
    WeightedMultiStepsState,
    skip_not_finite,
)
from stepax._wrappers.weighing import ReturnedParams, ReturnedUpdates
from stepax.interop.optax import to_optax, to_stepax


lib: Any = stepax  # for calls that are wrong on purpose
WEIGHTS = [3.0, 1.0, 4.0, 0.5]
SCALE = stepax.scale(1.0)


def run(tx, gs, weights, p=None, state: Any = None) -> tuple[list, Any]:
    """All updates and the last state, jitted, so that weights are traced."""
    p = parameters() if p is None else p
    state, out = tx.init(p) if state is None else state, []
    step = jax.jit(lambda g, s, w: tx.update(g, s, p, weight=w))
    for g, w in zip(gs, weights, strict=True):
        u, state = step(g, state, w)
        out.append(u)
    return out, state


def mean_of(gs, weights):
    total = sum(weights)
    parts = [
        jax.tree.map(lambda x, w=w: w / total * x, g)
        for g, w in zip(gs, weights, strict=True)
    ]
    return jax.tree.map(lambda *x: sum(x), *parts)


def spoiled(g):
    return jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), g)


IN = {
    "alone": lambda tx: tx,
    "pair": lambda tx: tx.gradient_transformation(),
    "chain": lambda tx: stepax.chain(stepax.identity(), tx),
    "partition": lambda tx: stepax.partition({"a": tx, "b": tx}, {"w": "a", "**": "b"}),
    "masked": lambda tx: stepax.masked(tx, True),
    "strict": lambda tx: stepax.strict_keywords(tx),
    "injected": lambda tx: stepax.inject_hyperparams(
        lambda rate: MultiSteps(
            stepax.scale(rate), 4, weighted=True
        ).gradient_transformation()
    )(rate=1.0),
    "if finite": lambda tx: stepax.apply_if_finite(tx, 3),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("way", IN)
def test_the_mean_counts_tokens_in_every_company(way):
    gs = many(4)
    out, _ = run(IN[way](MultiSteps(SCALE, 4, weighted=True)), gs, WEIGHTS)
    # Four products and sums, each rounded to 2^-24.
    compare(close, out[3], mean_of(gs, WEIGHTS))
    assert not any(x.any() for u in out[:3] for x in jax.tree.leaves(u))


@pytest.mark.few(1)
@pytest.mark.parametrize("weight", [1, 2, np.float64(8), jnp.bfloat16(1), True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
def test_equal_weights_are_none_bit_for_bit(weight, dtype):
    p = jax.tree.map(lambda x: x.astype(dtype), parameters())
    gs = [jax.tree.map(lambda x: x.astype(dtype), g) for g in many(3)]
    tx = MultiSteps(stepax.scale(-0.1), 3, accumulator_dtype=dtype)
    # Operation by operation: XLA may contract what one program has and another not.
    with jax.disable_jit():
        (u, state), (v, wanted) = (
            eager(tx, gs, p, **more) for more in ({"weight": weight}, {})
        )
    compare(equal, (u, state[:5]), (v, wanted))
    assert types(wanted) == types(tx.init(p))


def test_a_sum_is_weighted():
    gs, tx = many(4), MultiSteps(SCALE, 4, use_grad_mean=False)
    out, _ = run(tx, gs, WEIGHTS)
    total = jax.tree.map(lambda x: sum(WEIGHTS) * x, mean_of(gs, WEIGHTS))
    compare(close, out[3], total)


def test_a_call_without_a_weight_counts_once():
    tx, p, gs = MultiSteps(SCALE, 3), parameters(), many(3)
    u, state = None, tx.init(p)
    for g, more in zip(gs, [{}, {"weight": 3.0}, {}], strict=True):
        u, state = tx.update(g, state, p, **more)
    compare(close, u, mean_of(gs, [1, 3, 1]))


@pytest.mark.parametrize("is_traced", [False, True])
def test_weight_0_is_a_call_without_effect(is_traced):
    tx = MultiSteps(stepax.adam(0.1), 2, should_skip_update_fn=skip_not_finite)
    p = parameters()
    step = lambda g, s, w: tx.update(g, s, p, weight=w)
    nothing = jax.jit(step) if is_traced else step
    state = tx.init(p)
    for g in many(2):
        _, state = step(g, state, 2.0)
        assert isinstance(state, WeightedMultiStepsState)
        u, same = nothing(spoiled(g), state, 0.0)
        compare(equal, same, state)
        assert types(same) == types(state)
        assert not any(x.any() for x in jax.tree.leaves(u))


def test_a_schedule_and_skipped_gradients_count_only_what_was_taken():
    tx = MultiSteps(SCALE, lambda step: 1 + step, should_skip_update_fn=skip_not_finite)
    gs = many(4)
    weights = [2.0, 5.0, 7.0, 1.0]
    out, state = run(tx, [*gs[:2], spoiled(gs[2]), gs[3]], weights)
    compare(close, out[0], gs[0])
    compare(close, out[3], mean_of([gs[1], gs[3]], [5.0, 1.0]))
    assert int(state.gradient_step) == 2 and float(state.weight) == 0


def test_nan_is_cleaned_before_it_is_weighed():
    tx, gs = MultiSteps(stepax.chain(stepax.zero_nans(), SCALE), 2), many(2)
    bad = {**gs[1], "w": gs[1]["w"].at[0, 1].set(jnp.nan)}
    out, state = run(tx, [gs[0], bad], [1.0, 3.0])
    clean = {**gs[1], "w": gs[1]["w"].at[0, 1].set(0.0)}
    compare(close, out[1], mean_of([gs[0], clean], [1.0, 3.0]))
    assert any(bool(jnp.any(x)) for x in jax.tree.leaves(state.inner_opt_state))


def test_it_scans_and_maps():
    tx, p, gs = MultiSteps(stepax.adam(0.1), 2, weighted=True), parameters(), many(4)
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *gs)

    def step(state, row):
        u, state = tx.update(row[0], state, p, weight=row[1])
        return state, u

    weights = jnp.array(WEIGHTS)
    state, u = jax.jit(lambda w: jax.lax.scan(step, tx.init(p), (stacked, w)))(weights)
    out, wanted = run(tx, gs, WEIGHTS)
    compare(close, state, wanted)
    compare(close, jax.tree.map(lambda x: x[-1], u), out[-1])
    two = jax.vmap(lambda w: jax.lax.scan(step, tx.init(p), (stacked, w)))
    _, both = jax.jit(two)(jnp.stack([weights, weights.at[0].set(0)]))
    compare(close, jax.tree.map(lambda x: x[0], both), u)
    assert not any(x[1, 1].any() for x in jax.tree.leaves(both))


def test_the_inner_transformation_reads_the_sum():
    inner = lib.MultiSteps(SCALE, 2, weighted=True).gradient_transformation()
    tx = MultiSteps(inner, 2)
    gs = many(4)
    out, _ = run(tx, gs, WEIGHTS)
    compare(close, out[3], mean_of(gs, WEIGHTS))


# --- states with weights and without ------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
def test_without_weights_the_state_is_optax_s(weighted):
    p = parameters()
    with jax.numpy_dtype_promotion("standard"):
        theirs = optax.MultiSteps(optax.adam(0.1), 2).init(p)
    tx = MultiSteps(stepax.adam(0.1), 2, weighted=weighted)
    kind = WeightedMultiStepsState if weighted else MultiStepsState
    for run_of in (eager, jitted):
        _, state = run_of(tx, many(3), p)
        assert type(state) is type(tx.init(p)) is kind
        assert types(state) == types(tx.init(p))
    assert kind._fields == (*type(theirs)._fields, *["weight"] * weighted)
    plain = MultiStepsState(*tx.init(p)[:5])
    assert jax.tree.structure(to_optax(plain)) == jax.tree.structure(theirs)


@pytest.mark.parametrize("weighted", [False, True])
def test_once_there_are_weights_the_state_stays_as_it_is(weighted):
    tx, p = MultiSteps(stepax.adam(0.1), 2, weighted=weighted), parameters()
    _, first = run(tx, many(1), [2.0])
    _, later = run(tx, many(3), [2.0, 0.0, 3.0])
    _, without = eager(tx, many(3), p, state=first)
    assert types(first) == types(later) == types(without)
    assert type(first) is WeightedMultiStepsState and first.weight.dtype == jnp.float32


OLD = {
    "ours": lambda s: s,
    "pickle": lambda s: pickle.loads(pickle.dumps(s)),
    "Optax's": lambda s: to_stepax(to_optax(s)),
    "by name": lambda s: (
        stepax.checkpoint.from_optax(
            to_optax(s), lib.MultiSteps(stepax.adam(0.1), 3), parameters()
        ).state
    ),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("way", OLD)
def test_weights_may_come_in_the_middle_of_a_step(way):
    tx, p, gs = MultiSteps(stepax.adam(0.1), 3), parameters(), many(3)
    _, state = jitted(tx, gs[:1], p)
    old = OLD[way](state)
    found, wanted = (eager(tx, gs[1:], p, state=x) for x in (old, state))
    compare(equal, (found[0], found[1][:5]), wanted)
    out, _ = run(
        MultiSteps(SCALE, 3),
        gs[1:],
        [3.0, 2.0],
        state=old._replace(inner_opt_state=SCALE.init(p)),
    )
    compare(close, out[-1], mean_of(gs, [1.0, 3.0, 2.0]))


# --- on meshes -----------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize("checks", [True, False])
def test_a_mesh_sums_the_weights(checks):
    tx = MultiSteps(SCALE, 2, should_skip_update_fn=skip_not_finite, axis_name="d")
    gs = jnp.arange(12.0).reshape(2, 2, 3).at[1, 1].set(jnp.nan)  # call, device, entry
    weights = jnp.array([[1.0, 3.0], [2.0, 0.0]])

    def body(gs, weights):
        u, state = None, tx.init(jnp.zeros(3))
        for g, w in zip(gs[:, 0], weights[:, 0], strict=True):
            u, state = tx.update(g, state, weight=w)
        return u, state

    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    specs = {"in_specs": (P(None, "d"), P(None, "d")), "out_specs": P()}
    f = jax.jit(jax.shard_map(body, mesh=mesh, check_vma=checks, **specs))
    u, state = f(gs, weights)
    wanted = (gs[0, 0] + 3 * gs[0, 1] + 2 * gs[1, 0]) / 6
    np.testing.assert_allclose(u, wanted, rtol=1e-6)
    assert int(state.gradient_step) == 1
    u, state = f(gs, weights.at[0].set(0))  # a call that is empty everywhere
    assert int(state.mini_step) == 1 and not u.any()


def test_a_missing_axis_is_named():
    tx = MultiSteps(SCALE, 2, axis_name="nodes")
    with pytest.raises(
        ValueError, match="`axis_name` has 'nodes', which is not an axis"
    ):
        tx.update(jnp.ones(2), tx.init(jnp.ones(2)))


BAD = {
    "negative": (-1.0, ValueError, "`weight` of `MultiSteps` is -1, expected a finite"),
    "array": (jnp.float32(-2), ValueError, "is -2, expected a finite"),
    "NaN": (float("nan"), ValueError, "is nan, expected a finite number"),
    "infinite": (float("inf"), ValueError, "is inf, expected a finite number"),
    "vector": (jnp.ones(2), ValueError, r"is of shape \(2,\), expected a real scalar"),
    "complex": (1j, ValueError, "is complex, expected a real scalar"),
    "text": ("many", TypeError, "expected a number"),
}


@pytest.mark.parametrize("case", BAD)
def test_other_weights_are_errors(case):
    weight, kind, message = BAD[case]
    tx, p = MultiSteps(SCALE, 2), parameters()
    with pytest.raises(kind, match=message):
        tx.update(p, tx.init(p), p, weight=weight)


@pytest.mark.parametrize("weight", [-1.0, np.nan, np.inf])
def test_a_weight_found_wrong_in_a_program_shows(weight):
    tx, gs = MultiSteps(SCALE, 2), many(4)
    out, state = run(tx, gs, [weight, 1.0, 1.0, 1.0])
    assert all(jnp.isnan(x).all() for x in jax.tree.leaves(out[1]))
    compare(close, out[3], mean_of(gs[2:], [1, 1]))  # and the next step is clean


def test_parameters_count_by_their_elements_beyond_a_million_for_each_array():
    """As long as a GPU takes for so many, the host takes for dispatching an array."""
    params = [np.broadcast_to(np.float32(0), n) for n in (7, 2**21, 2**22)]
    assert ReturnedParams(SCALE).size(params) == 7 + 2**21 + 2**22 - 3 * 2**20
    assert ReturnedUpdates(SCALE).size(params) == 0
