"""Clipping to a norm that is found from the norms of recent steps."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import types
from compare import assert_equal
from inside import percentile
from runs import compilations

import stepax
from stepax import clip_by_recent_norm


# Norms with spikes of every size, and what never counts: 0, NaN, infinity.
NORMS = [1.0, 1.2, 0.9, 9.0, 1.1, 0.0, 1.0, np.nan, 1.3, 5.0, np.inf, 1.0, 0.1, 40.0]
UNIT = np.array([0.6, 0.8], np.float32)
OPTIONS: dict[str, dict[str, Any]] = {
    "zclip": {"threshold": 1.5, "decay": 0.8, "warmup": 3, "max_norm": 1.1},
    "autoclip": {"threshold": 60.0, "window": 4, "warmup": 2},
    "adagc": {"threshold": 1.1, "decay": 0.7, "warmup": 3, "max_norm": 1.1},
}


def zclip(xs, threshold, decay, warmup, max_norm):
    """From the paper, in double; the warm-up has plain means."""
    seen, mean, var = [], 0.0, 0.0
    for x in xs:
        if len(seen) < warmup:
            y = min(x, max_norm)
            seen.append(y)
            mean, var = np.mean(seen), np.var(seen)
        else:
            std = max(np.sqrt(var), 1e-6 * mean)
            z = (x - mean) / std
            y = mean + threshold**2 / z * std if z > threshold else x
            seen.append(y)
            mean = decay * mean + (1 - decay) * y
            var = decay * var + (1 - decay) * (y - mean) ** 2
        yield y


def autoclip(xs, threshold, window, warmup):
    for i, x in enumerate(xs):
        recent = xs[max(0, i + 1 - window) : i + 1]
        yield x if i < warmup else min(x, np.percentile(recent, threshold))


def adagc(xs, threshold, decay, warmup, max_norm):
    mean = np.inf
    for i, x in enumerate(xs):
        y = min(x, max_norm if i < warmup else threshold * mean)
        mean = min(mean, y) if i < warmup else decay * mean + (1 - decay) * y
        yield y


PAPERS = {"zclip": zclip, "autoclip": autoclip, "adagc": adagc}


def wanted(rule, norms):
    """The clipped norms; what does not count passes as it is."""
    counts = [x for x in norms if np.isfinite(x) and x > 0]
    clipped = PAPERS[rule](counts, **OPTIONS[rule])
    return [next(clipped) if np.isfinite(x) and x > 0 else x for x in norms]


@pytest.mark.thinned
@pytest.mark.parametrize("per", ["all", "leaf"])
@pytest.mark.parametrize("rule", PAPERS)
def test_the_equations_are_those_of_the_paper(rule, per):
    tx = clip_by_recent_norm(rule, per=per, **OPTIONS[rule])
    p = {"w": jnp.zeros(2)}
    state = first = tx.init(p)
    step, found = jax.jit(tx.update), []
    for x in NORMS:
        g = {"w": jnp.asarray(UNIT * np.float32(x))}
        u, state = step(g, state)
        found.append(float(np.linalg.norm(u["w"])))
        assert types(state) == types(first)
    # Float32 and powers of a decay: the mean of ten has an error of some 1e-6.
    np.testing.assert_allclose(found, wanted(rule, NORMS), rtol=1e-5)
    assert int(stepax.tree.get(state, "count")) == 11
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state))


@pytest.mark.parametrize("rule", PAPERS)
def test_each_leaf_has_statistics_of_its_own(rule):
    options = {**OPTIONS[rule], **({"max_norm": np.inf} if rule != "autoclip" else {})}
    tx = clip_by_recent_norm(rule, per="leaf", **options)
    p = {"a": jnp.zeros(2), "b": jnp.zeros(2), "off": None}
    state, alone = tx.init(p), tx.init({"a": p["a"]})
    for i, x in enumerate([1.0, 1.1, 0.9, 1.0, 8.0, 1.0]):
        a, b = UNIT * np.float32(x), UNIT * np.float32(100 - i)
        u, state = tx.update({"a": a, "b": jnp.asarray(b), "off": None}, state)
        v, alone = tx.update({"a": a}, alone)
        assert_equal(u["a"], v["a"])


def test_a_layer_without_a_gradient_is_not_stopped_for_ever():
    tx = clip_by_recent_norm("adagc", warmup=2)
    state = tx.init({"a": jnp.zeros(2), "b": jnp.zeros(2)})
    for x in [0.0, 0.0, 0.0, 1.0, 1.0]:
        g = {"a": jnp.ones(2), "b": x * jnp.ones(2)}
        u, state = tx.update(g, state)
    np.testing.assert_allclose(u["b"], 1.0, rtol=1e-6)


def test_nothing_is_compiled_again_and_values_may_be_injected():
    tx = stepax.inject_hyperparams(clip_by_recent_norm, static_args="rule")(
        rule="zclip", threshold=2.5, warmup=1
    )
    state = tx.init(jnp.zeros(2))
    step = jax.jit(tx.update)
    for x in (1.0, 2.0):
        _, state = step(jnp.full(2, x), state)
    with compilations() as compiled:
        state = stepax.tree.set(state, threshold=jnp.float32(1e9))
        u, state = step(jnp.full(2, 50.0), state)
    assert not compiled
    assert float(stepax.tree.get(state, "factor")) == 1 and float(u[0]) == 50


ERRORS = {
    "rule": ({"rule": "clip"}, "`rule` is 'clip', expected one of"),
    "per": ({"per": "tensor"}, "`per` is 'tensor', expected one of"),
    "percentile": (
        {"rule": "autoclip", "threshold": 101},
        "`threshold` is 101, but for autoclip it is a percentile, at most 100",
    ),
    "window": ({"window": 0}, "`clip_by_recent_norm`: `window` must be >= 1"),
    "decay": ({"decay": 1.5}, "`clip_by_recent_norm`: `decay` must be in"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_other_arguments_are_errors(case):
    arguments, message = ERRORS[case]
    with pytest.raises(ValueError, match=message):
        clip_by_recent_norm(**arguments)


def test_percentiles_of_long_windows():
    recent = np.random.RandomState(0).randn(40_000).astype("float32")
    with jax.numpy_dtype_promotion("standard"):
        found = percentile(jnp.asarray(recent), jnp.ones(40_000, bool), 90.0)
    np.testing.assert_allclose(found, np.percentile(recent, 90.0), rtol=1e-5)
