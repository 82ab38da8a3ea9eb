"""`apply_if_finite` leaves bad gradients out, unless they keep coming."""

import functools as ft
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import gradients, make, mlp, rows, types
from jax.sharding import AxisType, PartitionSpec
from runs import (
    close,
    compare,
    compilations,
    eager,
    equal,
    everyhow,
    jitted,
    many,
    parameters,
    scanned,
    traced,
    with_value,
)

import stepax
from stepax._engine.step.leafwise import _total, count_not_finite


apply_if_finite: Any = stepax.apply_if_finite
EXTRA = {"value": jnp.float32(1.0)}  # for those that read the loss


def sequence(pattern, value=np.nan):
    """Gradients, finite where the pattern has a dot."""
    gs = many(len(pattern))
    for i, c in enumerate(pattern):
        gs = gs if c == "." else with_value(gs, i, value)
    return gs


PATTERNS = ["...", ".x.", "x..", ".xx.", "xxxx.x.", ".xxx.xxxx", "xx.xx.xx"]


@pytest.mark.few(1)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_updates_and_states_are_optax_s(pattern, value):
    p, gs = parameters(), sequence(pattern, value)
    u, state = jitted(apply_if_finite(stepax.trace(0.5), 2), gs, p)
    with jax.numpy_dtype_promotion("standard"):
        v, wanted = jitted(optax.apply_if_finite(optax.trace(0.5), 2), gs, p)
    # A trace is a product and a sum, which one program may round once.
    compare(ft.partial(close, equal_nan=True), (u, state), (v, wanted))
    assert types(state) == types(wanted)


@pytest.mark.slow
@everyhow
def test_every_way_to_run_it_gives_the_same(run):
    p, gs = parameters(), sequence(".x.xx..")
    tx = apply_if_finite(stepax.adam(1e-2), 2)
    u, state = run(tx, gs, p)
    v, wanted = jitted(tx, gs, p)
    compare(close, (u, state), (v, wanted))
    assert types(state) == types(tx.init(p))


@pytest.mark.few(1)
@everyhow
def test_what_is_left_out_leaves_no_trace(run):
    p, tx = parameters(), apply_if_finite(stepax.adam(1e-2), 2)
    u, state = run(tx, sequence("..x.x."), p)
    gs = many(6)
    v, wanted = run(stepax.adam(1e-2), [gs[i] for i in (0, 1, 3, 5)], p)
    here = jnp.array([0, 1, 3, 5])
    compare(close, jax.tree.map(lambda x: x[here], u), v)
    compare(close, state.inner_state, wanted)
    gone = jnp.array([2, 4])
    assert not any(x[gone].any() for x in jax.tree.leaves(u))
    assert (int(state.total_notfinite), int(state.notfinite_count)) == (2, 0)


def test_errors_in_a_row_are_let_in_until_one_is_finite():
    tx, p = apply_if_finite(stepax.identity(), 2), parameters()
    u, state = eager(tx, sequence("xxxx.x"), p)
    let_in = [bool(np.isnan(x).any()) for x in u["w"]]
    assert let_in == [False, False, True, True, False, False]
    assert int(state.notfinite_count) == 1
    assert not state.last_finite


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
@pytest.mark.parametrize("row", rows(kind="optimizer", holomorphic=True))
def test_every_inner_state_is_a_scan_carry(row, dtype):
    p = jax.tree.map(lambda x: x.astype(dtype), parameters())
    gs = [jax.tree.map(lambda x: x.astype(dtype), g) for g in sequence(".x")]
    tx = apply_if_finite(make(row), 2)
    u, state = traced(tx, gs, p, **EXTRA)
    assert types(state) == types(tx.init(p))
    assert not any(x[1].any() for x in jax.tree.leaves(u))
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(state))


@pytest.mark.parametrize("run", [eager, jitted, scanned])
def test_inner_transformation_does_not_run_for_what_is_left_out(run):
    calls = []

    def update(updates, state, params=None):
        jax.debug.callback(lambda: calls.append(None))
        return updates, state

    inner = stepax.GradientTransformation(stepax.init_empty_state, update)
    jax.block_until_ready(run(apply_if_finite(inner, 3), sequence("x.xx"), {}))
    jax.effects_barrier()
    assert len(calls) == 1


# Without checks nothing tells that a sum is replicated.
@pytest.mark.parametrize(
    ("is_summed", "checks"), [(True, True), (False, True), (False, False)]
)
def test_runs_in_shard_map(is_summed, checks):
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))
    tx, p = apply_if_finite(stepax.adam(1e-2), 3), jnp.ones(2)
    spec = PartitionSpec() if is_summed else PartitionSpec("d")

    def step(g):
        g = g[0] if not is_summed else jax.lax.psum(g[0], "d")
        u, state = tx.update(g, tx.init(p), p)
        return (
            (u, state.last_finite) if is_summed else (u[None], state.last_finite[None])
        )

    sharded = jax.shard_map(
        step, mesh=mesh, in_specs=PartitionSpec("d"), out_specs=spec, check_vma=checks
    )
    u, finite = jax.jit(sharded)(jnp.array([[1.0, np.nan], [1.0, 1.0]]))
    equal(finite, False if is_summed else [False, True])
    equal(u == 0, [True, True] if is_summed else [[True, True], [False, False]])


def test_runs_in_pmap():
    tx = apply_if_finite(stepax.scale(2.0), 3)
    g = jnp.array([[1.0, np.nan], [1.0, 1.0]])
    state = jax.pmap(tx.init)(g)
    u, state = jax.pmap(tx.update)(g, state)
    equal(u, [[0.0, 0.0], [2.0, 2.0]])
    equal(state.last_finite, [False, True])


def test_leaves_without_numbers_are_finite():
    model = mlp()
    nothing = np.zeros(2, jax.dtypes.float0)
    p = {"model": model, "n": jnp.arange(2), "none": None}
    g = {"model": gradients(model), "n": nothing, "none": None}
    tx = apply_if_finite(stepax.adamw(1e-2), 2)
    for update in (tx.update, lambda g, s, p: jax.jit(lambda s: tx.update(g, s, p))(s)):
        state = tx.init(p)
        u, state = update(g, state, p)
        assert state.last_finite
        assert u["n"].dtype == jax.dtypes.float0
        assert all(x.any() for x in jax.tree.leaves(u["model"]))


def test_keywords_reach_the_inner_transformation():
    def update(updates, state, params=None, *, factor, **extra_args):
        return jax.tree.map(lambda x: x * factor, updates), state

    reader = stepax.GradientTransformationExtraArgs(stepax.init_empty_state, update)
    tx = apply_if_finite(reader, 1)
    u, _ = tx.update(jnp.ones(2), tx.init(jnp.ones(2)), factor=3.0, unread=1)
    equal(u, [3.0, 3.0])
    with jax.numpy_dtype_promotion("standard"):
        outer: Any = optax.apply_if_finite
        tx = outer(apply_if_finite(reader, 1), 1)
        u, _ = tx.update(jnp.ones(2), tx.init(jnp.ones(2)), factor=3.0)
    equal(u, [3.0, 3.0])


def test_nothing_is_compiled_after_the_first_of_each_kind():
    tx, p = apply_if_finite(stepax.adamw(1e-2), 2), parameters()
    gs = sequence(".x.x.x")
    _, state = eager(tx, gs[:2], p)
    with compilations() as compiled:
        for g in gs[2:]:
            _, state = tx.update(g, state, p)
    assert not compiled


def test_parameters_and_fresh_state_can_be_donated():
    tx, p, g = apply_if_finite(stepax.adam(1e-2), 2), parameters(), many(1)[0]
    wanted = jax.jit(tx.update)(g, tx.init(p), p)
    found = jax.jit(tx.update, donate_argnums=(1, 2))(g, tx.init(p), p)
    compare(equal, found, wanted)


def test_no_transformation_is_an_error():
    with pytest.raises(
        TypeError, match=r"`inner` of `apply_if_finite` .*`adam\(\.\.\.\)`"
    ):
        apply_if_finite(stepax.adam, 2)


def test_counts_of_bad_numbers_stop_at_the_largest():
    g = {"a": jnp.array([np.nan, 1.0, np.inf]), "b": jnp.arange(3), "c": None, "d": 1.5}
    assert int(count_not_finite(g)) == 2
    assert int(count_not_finite({})) == 0
    most = np.iinfo(np.int32).max
    for counts in ([most, 1], [most, most, 2], [2**30] * 4):
        assert int(_total(list(map(jnp.int32, counts)))) == most
