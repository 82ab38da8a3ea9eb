"""Metrics of what goes into a transformation and what comes out."""

import json
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stepax
from stepax import metrics
from stepax._engine.factories.scheduled import METRICS as FACTORIES
from stepax.tree import get, norm


P = {"w": jnp.ones((4, 3)), "b": jnp.ones(3)}
METRICS = {
    "before": lambda before, after, params: norm(before),
    "after": lambda before, after, params: norm(after),
    "clipped": lambda before, after, params: norm(after) < norm(before),
    "ratio": lambda before, after, params: jax.tree.map(
        lambda u, p: norm(u) / norm(p), after, params
    ),
}


def observed():
    return stepax.observe(stepax.clip_by_global_norm(1.0), METRICS)


def test_metrics_are_zeros_at_first_and_then_what_they_say():
    tx = observed()
    state = tx.init(P)
    assert not any(x.any() for x in jax.tree.leaves(state.metrics))
    u, new = tx.update(P, state, P)
    np.testing.assert_allclose(get(new, "before"), norm(P), rtol=1e-6)
    np.testing.assert_allclose(get(new, "after"), 1.0, rtol=1e-6)
    assert get(new, "clipped")
    np.testing.assert_allclose(get(new, "ratio/b"), norm(u["b"]) / norm(P["b"]))


def test_updates_are_those_without():
    plain = stepax.adamw(1e-2)
    tx = stepax.observe(plain, METRICS)
    (u, s), (v, t) = tx.update(P, tx.init(P), P), plain.update(P, plain.init(P), P)
    jax.tree.map(np.testing.assert_array_equal, (u, s.inner_state), (v, t))


def test_keywords_reach_what_is_observed():
    tx = stepax.strict_keywords(stepax.observe(stepax.contrib.reduce_on_plateau(), {}))
    tx.update(P, tx.init(P), P, value=jnp.float32(1.0))
    with pytest.raises(TypeError, match="vlaue"):
        tx.update(P, tx.init(P), P, vlaue=jnp.float32(1.0))


def operations(f, *args):
    """What the compiled program does, without names."""
    text = jax.jit(f).lower(*args).compile().as_text()
    lines = [line.split("metadata=")[0] for line in (text or "").splitlines()]
    names = ("reduce", "sqrt", "divide", "compare", "multiply", "select", "fusion")
    return {name: sum(f" {name}(" in line for line in lines) for name in names}


def test_metrics_that_are_dropped_are_not_computed():
    plain = stepax.sgd(1e-2, momentum=0.9)
    tx = stepax.observe(plain, METRICS)

    def without_metrics(g, s, p):
        u, new = tx.update(g, s, p)
        return u, new.inner_state

    first = tx.init(P)
    kept = operations(tx.update, P, first, P)
    dropped = operations(without_metrics, P, first, P)
    assert dropped == operations(plain.update, P, plain.init(P), P)
    assert kept != dropped


@pytest.mark.parametrize("wrong", [3, "norm", None])
def test_a_metric_is_a_function(wrong):
    with pytest.raises(TypeError, match="the metric `bad` of `observe` must be a func"):
        stepax.observe(stepax.sgd(0.1), {"bad": wrong})


def test_a_metric_keeps_its_dtype():
    tx = stepax.observe(stepax.identity(), {"x": lambda b, a, p: b["w"][0, 0]})
    p = jax.tree.map(lambda x: x.astype(jnp.bfloat16), P)
    state = tx.init(p)
    _, new = tx.update(P, state, p)  # gradients are wider than parameters
    assert get(new, "x").dtype == get(state, "x").dtype == jnp.bfloat16


GIVEN = {"by_layer": (metrics.rms("updates"),), "noise_scale": (4,)}


def calls():
    for name, factory in FACTORIES.items():
        yield name, factory, GIVEN.get(name, ())
    yield "of a stateful metric", metrics.by_layer, (metrics.cosine_to_last(), 2)


@pytest.mark.parametrize(("name", "factory", "args"), list(calls()))
def test_equal_calls_make_equal_metrics_that_survive_a_file(name, factory, args):
    tx, other = (
        stepax.observe(stepax.sgd(0.1), {"x": factory(*args)}) for _ in range(2)
    )
    assert tx == other and hash(tx) == hash(other)
    config = json.loads(json.dumps(stepax.to_config(tx)))
    assert stepax.from_config(config) == tx == pickle.loads(pickle.dumps(tx))
    assert tx != stepax.observe(stepax.sgd(0.1), {"x": metrics.rms("params")})


def test_all_public_metrics_are_known_by_their_call():
    plain = {"gradient_noise"}  # which is arithmetic
    assert {x for x in metrics.__all__ if x[0].islower()} - plain == FACTORIES.keys()
