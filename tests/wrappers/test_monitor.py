"""Measurements: what is measured, when, and a state that stays the same."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compare import assert_equal

from stepax import (
    EmptyState,
    MonitorState,
    SnapshotState,
    adam,
    apply_updates,
    chain,
    clip_by_global_norm,
    ema,
    measure_with_ema,
    monitor,
    scale_by_adam,
    snapshot,
)
from stepax.tree import get, map_params, norm


P = {"w": jnp.arange(6.0).reshape(2, 3), "b": jnp.ones(3)}
G = jax.tree.map(jnp.sin, P)

both = lambda updates: {"norm": norm(updates), "all": updates}
is_long = lambda updates: norm(updates) > 1.0


def types(tree):
    return [
        (x.shape, x.dtype, x.weak_type) for x in map(jax.typeof, jax.tree.leaves(tree))
    ]


MONITORS = {
    "snapshot": lambda lib: lib.snapshot("x", both),
    "one function": lambda lib: lib.monitor({"x": both}),
    "mean": lambda lib: lib.monitor({"x": lib.measure_with_ema(norm, 0.9)}),
    "biased mean": lambda lib: lib.monitor(
        {"x": lib.measure_with_ema(both, 0.9, False, "float32")}
    ),
    "several": lambda lib: lib.monitor(
        {"x": norm, "m": lib.measure_with_ema(norm, 0.9), "a": lib.ema(0.5)}
    ),
    "none": lambda lib: lib.monitor({}),
}


class Ours:
    snapshot, monitor, measure_with_ema = snapshot, monitor, measure_with_ema
    ema = ema


@pytest.mark.few(3)
@pytest.mark.parametrize("name", MONITORS)
def test_measurements_and_states_are_those_of_optax(name):
    tx, reference = MONITORS[name](Ours), MONITORS[name](optax)
    state, theirs = tx.init(P), reference.init(P)
    for step in range(1, 4):
        g = jax.tree.map(lambda x: x / step, G)  # noqa: B023  (called in the same turn)
        u, state = jax.jit(tx.update)(g, state, P)
        with jax.numpy_dtype_promotion("standard"):
            _, theirs = jax.jit(reference.update)(g, theirs, P)
        assert_equal(u, g)
        assert type(state).__name__ == type(theirs).__name__
        assert state._fields == theirs._fields
        assert_equal(tuple(state), tuple(theirs))


def test_snapshot_starts_with_the_parameters():
    state: Any = snapshot("x", both).init(P)
    with jax.numpy_dtype_promotion("standard"):
        wanted: Any = optax.snapshot("x", both).init(P)
    assert_equal(tuple(state), tuple(wanted))


def test_measurements_are_zero_before_the_first_step():
    tx = monitor({"x": both, "long": is_long, "mean": measure_with_ema(is_long, 0.9)})
    state: Any = tx.init(P)
    wanted = {"norm": jnp.zeros(()), "all": jax.tree.map(jnp.zeros_like, P)}
    assert_equal(state.measurements["x"], wanted)
    assert not state.measurements["long"] and state.measurements["long"].dtype == bool
    assert state.measurements["mean"] == 0


@pytest.mark.few(2)
@pytest.mark.parametrize("wrap", [jax.jit, lambda f: f], ids=["jit", "no jit"])
@pytest.mark.parametrize("name", MONITORS)
@pytest.mark.parametrize("params", ["float32", "bfloat16"])
@pytest.mark.parametrize("gradients", ["float32", "float16"])
def test_state_never_changes_its_types(name, params, gradients, wrap):
    p = jax.tree.map(lambda x: x.astype(params), P)
    g = jax.tree.map(lambda x: x.astype(gradients), G)
    tx = MONITORS[name](Ours)
    first = state = tx.init(p)
    for _ in range(2):
        _, state = wrap(tx.update)(g, state, p)
        assert jax.tree.structure(state) == jax.tree.structure(first)
        assert types(state) == types(first)


def test_training_with_a_monitor_scans():
    tx = chain(
        scale_by_adam(),
        monitor({"norm": norm, "long": measure_with_ema(is_long, 0.9)}),
        clip_by_global_norm(1.0),
    )

    @jax.jit
    def train(p, state):
        def step(carry, _):
            p, state = carry
            u, state = tx.update(p, state, p)
            return (apply_updates(p, u), state), get(state, "norm")

        return jax.lax.scan(step, (p, state), length=5)

    (_, state), norms = train(P, tx.init(P))
    assert norms.shape == (5,) and (norms > 0).all()
    assert get(state, "norm") == norms[-1]
    # Adam's steps are about 1 in each of 9 numbers, so all are long; five roundings of
    # the mean of ones, and one of its correction.
    np.testing.assert_allclose(get(state, "long"), 1, rtol=6e-7)


def test_truth_values_are_averaged_as_numbers():
    tx: Any = measure_with_ema(is_long, 0.5, debias=False)
    state: Any = tx.init(P)
    assert state[0] == EmptyState() and state[1].ema.dtype == jnp.float32
    out = []
    for scale in 10.0, 0.0, 10.0:
        mean, state = tx.update(jax.tree.map(lambda x: scale * x, G), state)  # noqa: B023  (called in the same turn)
        out.append(mean)
    assert out == [0.5, 0.25, 0.625]
    whole: Any = measure_with_ema(lambda updates: 3, 0.5).init(P)
    assert whole[1].ema.dtype == jnp.float32


def test_transformations_measure_with_parameters_and_keywords():
    def update(updates, state, params: Any = None, **extra):
        return (params["b"], extra["value"]), state + 1

    init = lambda params: jnp.zeros([])
    counter: Any = optax.GradientTransformationExtraArgs(init, update)
    tx: Any = monitor({"x": counter})
    state: Any = tx.init(P)
    assert state.measurements == {}  # unknown, for there is no keyword yet
    u, state = tx.update(G, state, P, value=3.0)
    assert u is G and state.measure_states == (1,)
    assert_equal(state.measurements["x"][0], P["b"])
    assert state.measurements["x"][1] == 3.0


def test_plain_transformations_are_spared_keywords():
    plain: Any = optax.scale(2.0)
    tx: Any = monitor({"x": plain})
    _, state = tx.update(G, tx.init(P), P, value=3.0)
    assert_equal(state.measurements["x"], jax.tree.map(lambda x: 2 * x, G))


def test_measure_that_needs_known_numbers_works_outside_of_jit():
    tx: Any = monitor({"x": lambda updates: float(norm(updates))})
    _, state = tx.update(G, tx.init(P))
    np.testing.assert_allclose(state.measurements["x"], float(norm(G)))


def test_state_of_optax_may_be_carried_on():
    reference, tx = MONITORS["several"](optax), MONITORS["several"](Ours)
    state = reference.init(P)
    with jax.numpy_dtype_promotion("standard"):
        _, wanted = jax.jit(reference.update)(G, state, P)
    _, found = jax.jit(tx.update)(G, state, P)
    assert_equal(tuple(found), tuple(wanted))


def test_states_can_be_donated_from_the_start():
    tx = chain(snapshot("x", lambda updates: updates), monitor({"y": both}), adam(0.1))

    def step(p, state):
        u, state = tx.update(p, state, p)
        return apply_updates(p, u), state

    for init in tx.init, jax.jit(tx.init):
        p = jax.tree.map(jnp.copy, P)
        wanted = jax.jit(step)(p, init(p))
        found = jax.jit(step, donate_argnums=(0, 1))(p, init(p))
        jax.tree.map(np.testing.assert_array_equal, found, wanted)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", MONITORS)
def test_modules_are_measured(name):
    model = eqx.nn.MLP(2, 2, 3, 1, key=jax.random.key(0))
    g = eqx.filter(model, eqx.is_array)
    tx = MONITORS[name](Ours)
    first = tx.init(model)
    _, state = tx.update(g, first, model)
    assert types(state) == types(first)


@pytest.mark.parametrize("name", MONITORS)
def test_parameters_in_the_state_can_be_mapped(name):
    tx = MONITORS[name](Ours)
    state: Any = tx.init(P)
    mapped = map_params(tx, lambda x: x + 1.0, state)
    assert jax.tree.structure(mapped) == jax.tree.structure(state)
    if name == "one function":
        assert_equal(mapped.measurements["x"]["all"], jax.tree.map(jnp.ones_like, P))
        assert mapped.measurements["x"]["norm"] == 0


def test_measures_must_be_functions_or_transformations():
    wrong: Any = {"x": 1.0}
    with pytest.raises(TypeError, match=r"`x` in `measures` .* of type `float`"):
        monitor(wrong)


def test_states_are_those_of_optax_to_isinstance():
    assert isinstance(snapshot("x", norm).init(P), optax.SnapshotState)
    assert isinstance(monitor({}).init(P), optax.MonitorState)
    assert isinstance(optax.monitor({}).init(P), MonitorState)
    assert issubclass(SnapshotState, tuple)
