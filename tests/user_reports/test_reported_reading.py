"""Reading rates and norms, keeping states, and writing one's own transformation."""

import inspect
import pickle
import typing
from typing import Any

import cases
import flax.serialization
import jax
import jax.numpy as jnp
import library
import numpy as np
import orbax.checkpoint
import pytest
from keywords import keywords
from library import make, optax
from runs import compare, equal


row = pytest.mark.row
READING = "reading rate, norms, metrics"
CHECKPOINTS = "checkpoints and state structure"
RATED = library.rows(kind="optimizer", takes="learning_rate")


def run(tx, p, steps=3, state=None):
    state = tx.init(p) if state is None else state
    u = p
    for i in range(steps):
        g = cases.gradients(p, i)
        u, state = tx.update(g, state, p, **keywords(g))
    return u, state


def parameters() -> Any:
    return cases.TREES["dict"]()


# --- reading rate, norms, metrics ----------------------------------------------------


@row(READING, optax="passes")
def test_an_injected_rate_is_read_and_set_by_its_name():
    tx = optax.inject_hyperparams(optax.adam)(learning_rate=1e-3)
    state = optax.tree.set(tx.init(parameters()), learning_rate=jnp.float32(1e-4))
    _, state = run(tx, parameters(), state=state)
    assert optax.tree.get(state, "learning_rate") == jnp.float32(1e-4)


# Where more than one is found: the first, by which the later ones are divided; that
# of the base optimizer; those of both members; and that of the average, a step ahead.
SEVERAL_RATES = {
    "rprop": [0.01, 1 / 3],
    "galore": [0.01, 0.01 / 3],
    "muon": [0.01 / 3, 0.01 / 3],
    "schedule_free_sgd": [0.01 / 3, 0.01 / 4],
    "schedule_free_adamw": [0.01 / 3, 0.01 / 4],
}


@pytest.mark.few(1)
@row(READING, optax="fails")
@pytest.mark.parametrize("row", RATED)
def test_the_rate_that_a_schedule_gave_is_read_from_the_state(row):
    if "fast_optimizer" in inspect.signature(row.factory).parameters:
        pytest.skip("the test's own closure around it hides it")

    def schedule(count):
        return 0.01 / (1 + jnp.asarray(count, jnp.float32))

    tx = make(row, learning_rate=schedule)
    _, state = run(tx, parameters())
    found = optax.hyperparams(tx, state)
    rates = [float(x) for path, x in found.items() if "learning_rate" in path]
    # That of the third step; Fromage divides it by the root of 1 and its square.
    wanted = SEVERAL_RATES.get(row.name, [0.01 / 3])
    np.testing.assert_allclose(rates, wanted, rtol=1e-5)


@row(READING, optax="fails")
def test_a_monitored_norm_keeps_the_structure_of_the_state():
    tx = optax.monitor({"norm": optax.tree.norm})
    first = tx.init(parameters())
    _, state = run(tx, parameters())
    assert jax.tree.structure(state) == jax.tree.structure(first)
    assert optax.tree.get(state, "norm") > 0


METRICS = {
    "norm_before": lambda before, after, params: optax.tree.norm(before),
    "norm_after": lambda before, after, params: optax.tree.norm(after),
    "trust_ratio": lambda before, after, params: jax.tree.map(
        lambda u, p: jnp.linalg.norm(u) / jnp.linalg.norm(p), after, params
    ),
}


@pytest.mark.slow
@row(READING, optax="fails")
@pytest.mark.parametrize("row", library.rows(kind="optimizer"))
def test_norms_before_and_after_and_trust_ratios_are_read(row):
    p = parameters()
    tx = optax.observe(make(row), METRICS)
    first = tx.init(p)
    u, state = run(tx, p, steps=2, state=first)
    assert cases.types(state) == cases.types(first)
    g, close = cases.gradients(p, 1), np.testing.assert_allclose
    close(optax.tree.get(state, "norm_before"), optax.tree.norm(g), rtol=1e-5)
    close(optax.tree.get(state, "norm_after"), optax.tree.norm(u), rtol=1e-5)
    norms = jnp.linalg.norm(u["w"]), jnp.linalg.norm(p["w"])
    close(optax.tree.get(state, "trust_ratio/w"), norms[0] / norms[1], rtol=1e-5)


@row(READING, optax="fails")
def test_norms_around_a_clip_are_read_in_a_scan():
    tx = optax.chain(optax.observe(optax.clip_by_global_norm(1.0), METRICS))
    p = parameters()

    def step(state, i):
        return tx.update(jax.tree.map(lambda x: x * (i + 1), p), state, p)[1], None

    scan = lambda: jax.lax.scan(step, tx.init(p), jnp.arange(2.0))[0]
    state = jax.jit(scan)()
    before, after = (optax.tree.get(state, k) for k in ("norm_before", "norm_after"))
    np.testing.assert_allclose(before, 2 * optax.tree.norm(p), rtol=1e-5)
    np.testing.assert_allclose(after, 1.0, rtol=1e-5)


@pytest.mark.few(16)
@row(READING, optax="fails")
@pytest.mark.parametrize("row", library.rows(kind="optimizer"))
def test_what_an_optimizer_keeps_for_a_parameter_is_read_by_its_path(row):
    p = {"encoder": parameters()}
    inner = make(row).init(p)
    states = [inner, optax.MultiSteps(make(row), 2).init(p)]
    states.append(optax.chain(optax.clip(1.0), make(row)).init(p))
    like = lambda x: jnp.shape(x) == (4, 3)
    known = jax.tree_util.tree_leaves_with_path(inner)
    slots = {
        path[-3].name: x
        for path, x in known
        if like(x) and len(path) > 2 and hasattr(path[-3], "name")
    }
    assert bool(slots) == any(like(x) for _, x in known)
    for slot, x in slots.items():
        for state in states:
            found = optax.tree.get_all_with_path(state, f"{slot}/encoder/w")
            assert found
            assert all(y.shape == x.shape for _, y in found)


@pytest.mark.few(15)
@row(READING, optax="fails")
@pytest.mark.parametrize("row", library.rows(kind="optimizer"))
def test_it_is_said_what_an_optimizer_keeps(row):
    p = parameters()
    found = optax.describe(make(row), jax.eval_shape(lambda: p)).to_dict()
    arrays = jax.tree.leaves(make(row).init(p))
    assert found["whole"]["bytes"] == sum(x.nbytes for x in arrays)
    assert set(found["whole"]["dtypes"]) == {str(x.dtype) for x in arrays}
    assert set(found["parameters"]) == {"w", "b"}


# --- checkpoints and state structure -------------------------------------------------


def pickled(state, like):
    return pickle.loads(pickle.dumps(state))


def by_flax(state, like):
    return flax.serialization.from_bytes(like, flax.serialization.to_bytes(state))


def by_orbax(state, like, folder):
    with orbax.checkpoint.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "state", state)
        checkpointer.wait_until_finished()
        return checkpointer.restore(folder / "state", like)


@pytest.mark.few(1)
@row(CHECKPOINTS, optax="passes")
@pytest.mark.parametrize("by", [pickled, by_flax])
@pytest.mark.parametrize("row", library.rows(kind="optimizer"))
def test_a_state_is_saved_and_restored(row, by):
    tx, p = make(row), parameters()
    # Flax writes no random keys, but their numbers.
    numbers = optax.tree.unwrap_random_key_data
    state = numbers(run(tx, p)[1])
    restored = by(state, numbers(tx.init(p)))
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    compare(equal, restored, state)


@row(CHECKPOINTS, optax="passes")
def test_orbax_restores_a_state(tmp_path):
    tx, p = optax.chain(optax.clip(1.0), optax.adamw(1e-3)), parameters()
    _, state = run(tx, p)
    restored = by_orbax(state, tx.init(p), tmp_path)
    compare(equal, restored, state)


WRAPPED = {
    "a clip before it": lambda tx: optax.chain(optax.clip(1.0), tx),
    "accumulation": lambda tx: optax.MultiSteps(tx, 2),
    "a mask": lambda tx: optax.masked(tx, {"w": True, "b": True}),
    "a guard": lambda tx: optax.apply_if_finite(tx, 3),
}


@pytest.mark.few(1)
@row(CHECKPOINTS, optax="fails")
@pytest.mark.parametrize("change", WRAPPED)
@pytest.mark.parametrize("row", library.rows(kind="optimizer"))
def test_a_state_is_carried_over_when_the_chain_changes(row, change):
    p = parameters()
    _, state = run(make(row), p)
    changed = WRAPPED[change](make(row))
    moved = optax.tree.migrate(state, changed.init(p))
    assert moved.unused == ()
    back = optax.tree.migrate(moved.state, make(row).init(p))
    assert back.fresh == ()
    compare(equal, back.state, state)
    g = cases.gradients(p)
    changed.update(g, moved.state, p, **keywords(g))


# --- typing and documentation --------------------------------------------------------


@row("typing", optax="fails")
@pytest.mark.parametrize("name", ["Params", "Updates", "OptState"])
def test_to_a_type_checker_any_tree_may_be_parameters(name):
    assert Any in typing.get_args(getattr(optax, name))


@row("docs", optax="passes")
def test_a_transformation_of_ones_own_is_two_functions():
    def halve(updates, state, params=None):
        return jax.tree.map(lambda u: u / 2, updates), state

    own = optax.GradientTransformation(lambda params: (), halve)
    u, _ = run(optax.chain(own, optax.scale(2.0)), parameters())
    g = cases.gradients(parameters(), 2)
    np.testing.assert_allclose(u["w"], g["w"], rtol=1e-6)
