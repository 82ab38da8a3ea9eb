"""Counts that must not grow: equations, lowered lines, compilations."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from cases import make, rows
from keywords import keywords

import stepax


SHAPES = [(4, 3), (5,), (7, 2), (3,), (2, 2, 2)]


def many(leaves: int) -> dict:
    return {f"leaf {i}": jnp.ones(SHAPES[i % len(SHAPES)]) for i in range(leaves)}


def equations(tx, params) -> int:
    state = tx.init(params)
    return len(jax.make_jaxpr(tx.update)(params, state, params).eqns)


LABELS = {"leaf 1*": "adam", "**": "sgd"}

# Each runs in one walk over the leaves, however it is nested.
ONE_PASS = {
    "adamw": lambda: stepax.adamw(1e-3),
    "schedule and mask": lambda: stepax.adamw(
        lambda count: 1e-3 / (jnp.asarray(count, jnp.float32) + 1),
        mask=lambda p: jax.tree.map(lambda x: x.ndim > 1, p),
    ),
    "nested chains": lambda: stepax.chain(
        stepax.clip(1.0), stepax.chain(stepax.zero_nans(), stepax.adam(1e-3))
    ),
    "partition": lambda: stepax.partition(
        {"adam": stepax.adam(1e-3), "sgd": stepax.sgd(1e-2, momentum=0.9)}, LABELS
    ),
    "masked": lambda: stepax.masked(stepax.adamw(1e-3), {"leaf 1*": True, "**": False}),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("leaves", [20, 148, 580])
@pytest.mark.parametrize("name", ONE_PASS)
def test_a_pass_is_one_equation_a_leaf(name, leaves):
    assert equations(ONE_PASS[name](), many(leaves)) <= leaves + 20


@pytest.mark.parametrize("leaves", [20, 148])
def test_a_global_norm_is_one_equation(leaves):
    tx = stepax.chain(stepax.clip_by_global_norm(1.0), stepax.adamw(1e-3))
    assert equations(tx, many(leaves)) <= leaves + 20


def test_equal_shapes_share_one_lowered_function():
    tx = stepax.adamw(1e-3)
    params = many(100)
    lowered = jax.jit(tx.update).lower(params, tx.init(params), params).as_text()
    functions = lowered.count("func.func private @scale_by_adam_then_")
    assert functions == len(SHAPES)


def test_the_compiled_program_is_that_of_a_plain_loop():
    params = many(10)
    g, count = params, jnp.zeros([], jnp.int32)
    zeros = jax.tree.map(jnp.zeros_like, params)

    def leaf(g, m, v, p, t):
        m = 0.1 * g + 0.9 * m
        v = 0.001 * g**2 + 0.999 * v
        c1, c2 = 1 - jax.lax.pow(0.9, t), 1 - jax.lax.pow(0.999, t)
        u = (m / c1) / (jnp.sqrt(v / c2 + 0.0) + 1e-8)
        return -1e-3 * (u + 1e-4 * p), m, v

    def loop(g, m, v, p, count):
        t = count + 1
        return {k: leaf(g[k], m[k], v[k], p[k], t) for k in g}, t

    def bytes_of(f, *args):
        found: Any = jax.jit(f).lower(*args).compile().cost_analysis()
        return found["bytes accessed"]

    tx = stepax.adamw(1e-3)
    ours = bytes_of(tx.update, g, tx.init(params), params)
    # A few scalars may differ; an array that is written needlessly would not pass.
    assert ours <= bytes_of(loop, g, zeros, zeros, params, count) + 64


def compilations(f) -> int:
    """How many programs XLA compiles while `f` runs."""
    seen = []

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        f()
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    return len(seen)


def test_an_equal_optimizer_made_anew_compiles_nothing():
    params = many(5)

    def run():
        tx = stepax.adamw(1.25e-3)
        tx.update(params, tx.init(params), params)

    assert compilations(run) > 0
    assert compilations(run) == 0


def test_three_equal_optimizers_compile_once():
    params = many(5)
    step = jax.jit(lambda tx, g, s, p: tx.update(g, s, p), static_argnums=0)
    make = lambda: stepax.chain(stepax.clip_by_global_norm(1.0), stepax.adamw(1e-3))
    state = make().init(params)

    def run():
        for _ in range(3):
            step(make(), params, state, params)

    assert compilations(run) == 1


@pytest.mark.slow
@pytest.mark.parametrize("row", rows(kind="optimizer", takes="learning_rate"))
def test_a_new_learning_rate_as_an_array_compiles_nothing(row):
    params = many(5)

    def run(learning_rate):
        tx = make(row, learning_rate=jnp.asarray(learning_rate, jnp.float32))
        tx.update(params, tx.init(params), params, **keywords(params))

    run(1.5e-3)
    assert compilations(lambda: run(2.5e-3)) == 0
