"""Matrices that take turns at decompositions, with `stagger=True`."""

import inspect
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import make, rows
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import stepax
from stepax._engine.step.turns import Turns, divided, since_turn
from stepax.distributed import audit, state_sharding


EVERY = 5


def _parameters(row):
    return inspect.signature(row.factory).parameters


ROWS = [q for q in rows(kind="optimizer") if "stagger" in _parameters(q.values[0])]
everyone = pytest.mark.parametrize("row", ROWS)
DIVIDED = [q for q in ROWS if "axis_name" in _parameters(q.values[0])]


def _make(row, every=EVERY, **how):
    return make(row, **{"stagger": True, _frequency(row): every, **how})


def _frequency(row):
    names = {"precondition_frequency", "inverse_every", "update_proj_gap"}
    (name,) = names & set(_parameters(row))
    return name


def _draw(shape, seed):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), float)


def _params(number, n=4):
    return {f"w{i}": _draw((n, n), i) for i in range(number)}


def _grads(p, t):
    # Named by the matrix, so that each has the same gradients in any tree.
    return {k: _draw(x.shape, [t, int(k[1:])]) for k, x in p.items()}


# In this order: KL-Shampoo has roots beside its bases, which are new in each step.
FIELDS = ("bases", "roots", "projector")


@pytest.mark.parametrize("at_turn", [None, lambda ctx, turn: ctx + turn])
def test_matrices_of_a_stack_take_even_turns_in_their_part_of_a_cycle(at_turn):
    turns = Turns(at_turn, start=0.25, end=0.75)
    contexts = [8.0 + (0.25 + i / 8 if at_turn else 0) for i in range(4)]
    assert turns.contexts(8.0, 4) == contexts
    xs, ys = jnp.ones((4, 2, 3)), (jnp.arange(4.0), jnp.ones((4, 3)))
    one = lambda ctx, x, y: {"x": ctx * x, "y": ctx + y[0]}
    found = jax.jit(turns.mapped(one, 8.0))(xs, ys)
    np.testing.assert_allclose(found["y"], np.arange(4) + contexts)
    np.testing.assert_allclose(found["x"], np.reshape(contexts, (4, 1, 1)) * xs)


def _factors(state, p):
    """The decompositions of each matrix, by its name."""
    for name in FIELDS:
        if found := stepax.tree.get(state, name, None):
            return {k: found[k] for k in p}
    raise AssertionError(f"none of {FIELDS} is in the state")


def _renewed(tx, p, steps, place=lambda tree: tree):
    """For each step, the matrices whose decompositions it changes; and the updates."""
    state, update, found, updates = tx.init(p), jax.jit(tx.update), [], []
    for t in range(steps):
        before = jax.device_get(_factors(state, p))
        u, state = update(place(_grads(p, t)), state, p)
        after = jax.device_get(_factors(state, p))
        same = jax.tree.map(np.array_equal, before, after)
        found.append({k for k in p if not all(jax.tree.leaves(same[k]))})
        updates.append(u)
    return found, updates


@pytest.mark.slow
@pytest.mark.parametrize("number", [3, 5, 12])
@everyone
def test_each_matrix_has_its_turn_once_in_a_cycle(row, number):
    p = _params(number)
    renewed, _ = _renewed(_make(row), p, 4 * EVERY)
    # The first cycle begins with all, or with none until it is their turn.
    settled = renewed[2 * EVERY :]
    times = {k: [t for t, who in enumerate(settled) if k in who] for k in p}
    assert {tuple(np.diff(x)) for x in times.values()} == {(EVERY,)}
    assert max(map(len, settled)) == -(-number // EVERY)


@pytest.mark.few(1)
@everyone
def test_one_matrix_steps_as_without_turns(row):
    p = _params(1)
    _, ours = _renewed(_make(row), p, 12)
    _, usual = _renewed(_make(row, stagger=False), p, 12)
    jax.tree.map(np.testing.assert_array_equal, ours, usual)


@pytest.mark.few(1)
@everyone
def test_turns_at_every_step_change_nothing(row):
    p = _params(3)
    _, ours = _renewed(_make(row, every=1), p, 5)
    _, usual = _renewed(_make(row, every=1, stagger=False), p, 5)
    jax.tree.map(np.testing.assert_array_equal, ours, usual)


KINDS = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}
DEVICES = 8


@pytest.mark.slow
@pytest.mark.parametrize("kind, spec", [("auto", P("data")), ("explicit", P())])
@pytest.mark.parametrize("row", DIVIDED)
def test_the_matrices_of_a_device_take_turns(row, kind, spec):
    mesh = jax.make_mesh((DEVICES,), ("data",), axis_types=(KINDS[kind],))
    put = lambda tree: jax.device_put(tree, NamedSharding(mesh, spec))
    tx, usual, n = _make(row), _make(row, stagger=False), 2 * DEVICES
    with jax.enable_x64(True):
        # Of one device the two first, and these alone on no mesh.
        p = _params(n, n=8)
        pair = dict(list(p.items())[:2])
        _, alone = _renewed(tx, pair, EVERY + 3)
        with jax.set_mesh(mesh):
            there = put(p)
            renewed, found = _renewed(tx, there, EVERY + 3, put)
            messages = [Counter(audit(x, there).collectives) for x in (tx, usual)]
    assert max(map(len, renewed[1:])) == DEVICES
    assert messages[0] == messages[1]
    for ours, theirs in zip(found, alone, strict=True):
        for k, u in theirs.items():
            np.testing.assert_allclose(ours[k], u, rtol=1e-6, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("row", DIVIDED)
def test_turns_inside_of_shard_map(row):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    spec = P("data")
    with jax.enable_x64(True):
        p = _params(4)
        _, alone = _renewed(_make(row), dict(list(p.items())[:2]), EVERY + 3)
        tx = _make(row, axis_name="data")
        there = jax.device_put(p, NamedSharding(mesh, spec))
        held = jax.tree.map(lambda x: x.spec, state_sharding(tx, there))
        step = jax.shard_map(
            tx.update, mesh=mesh, in_specs=(spec, held, spec), out_specs=(spec, held)
        )
        step, state = jax.jit(step), tx.init(there)
        for t, theirs in enumerate(alone):
            ours, state = step(_grads(p, t), state, there)
            for k, u in theirs.items():
                np.testing.assert_allclose(ours[k], u, rtol=1e-6, atol=1e-9)


@pytest.mark.slow
@everyone
def test_a_traced_frequency_and_no_jit_have_the_same_turns(row):
    rest = {"stagger": True, "learning_rate": 0.1, _frequency(row): EVERY}
    with jax.enable_x64(True):
        tx = stepax.inject_hyperparams(row.factory)(**rest)
        p, eager = _params(3), row.factory(**rest)
        state, other = tx.init(p), eager.init(p)
        for t in range(EVERY + 2):
            u, state = jax.jit(tx.update)(_grads(p, t), state, p)
            v, other = eager.update(_grads(p, t), other, p)
            for k, x in v.items():
                np.testing.assert_allclose(u[k], x, rtol=1e-9, atol=1e-12)


def test_parts_of_a_cycle_are_as_long_as_their_costs():
    parts = divided(None, [1, 6, 3])
    found = [(x.start, x.end) for x in parts]
    np.testing.assert_allclose(found, [(0.9, 1), (0, 0.6), (0.6, 0.9)])


def test_matrices_without_a_cost_share_a_turn():
    assert {(x.start, x.end) for x in divided(None, [0, 0])} == {(0, 0)}


def test_steps_since_the_first_turn():
    steps = jnp.arange(4)
    assert since_turn(steps, jnp.asarray(10), 0.25).tolist() == [-2, -1, 0, 1]
