"""A state carried over to a transformation that has changed."""

from typing import Any, NamedTuple

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compare import assert_same_tree
from runs import compare, equal
from wrappers import WRAPPERS

import stepax
import stepax.contrib
from stepax.tree import get, migrate


class Network(NamedTuple):
    policy: Any
    value: Any


P = Network({"w": jnp.ones((4, 3))}, jnp.ones(3))


def trained(tx):
    state = tx.init(P)
    for _ in range(3):
        _, state = tx.update(P, state, P)
    return state


def test_what_is_new_and_what_is_left_is_said():
    new = stepax.sgd(1e-3, momentum=0.9).init(P)
    state, fresh, unused = migrate(trained(stepax.adam(1e-3)), new)
    assert fresh == ("0/trace/policy/w", "0/trace/value")
    assert unused[:2] == ("0/count", "0/mu/policy/w") and len(unused) == 5
    compare(equal, state, new)


def test_parameters_that_are_named_tuples_are_no_states():
    old, new = trained(stepax.scale_by_lion()), stepax.adam(1e-3).init(P)
    with pytest.warns(UserWarning, match="count beside them is old: 0/nu/policy/w, 0"):
        state, fresh, unused = migrate(old, new)
    assert fresh == ("0/nu/policy/w", "0/nu/value") and unused == ()
    compare(equal, get(state, "mu"), old.mu)


def test_another_shape_is_not_carried_over():
    old = trained(stepax.scale_by_adam())
    p = P._replace(value=jnp.ones(4))
    with pytest.warns(UserWarning, match="is old: mu/value, nu/value; their bias"):
        state, fresh, unused = migrate(old, stepax.scale_by_adam().init(p))
    assert fresh == unused == ("mu/value", "nu/value")
    assert get(state, "mu/value").shape == (4,)


def test_one_count_becomes_that_of_every_part():
    labels = {"policy": "a", "value": "b"}
    tx = stepax.partition({"a": stepax.adam(1e-3), "b": stepax.adam(1e-4)}, labels)
    old = trained(stepax.adam(1e-3))
    state, fresh, unused = migrate(old, tx.init(P))
    assert fresh == unused == ()
    assert [int(x) for _, x in stepax.tree.get_all_with_path(state, "count")] == [3, 3]
    buffers = [x.unsafe_buffer_pointer() for x in jax.tree.leaves(state)]
    assert len({*buffers}) == len(buffers)  # so that it can be donated
    _, fresh, unused = migrate(state, old)
    assert fresh == ("0/count",) and len(unused) == 2  # which of the two, is not known


def test_equals_are_carried_over_in_their_order():
    two = stepax.chain(stepax.scale_by_adam(), stepax.scale_by_adam(b1=0.5))
    old = trained(two)
    state, fresh, unused = migrate(old, stepax.chain(stepax.clip(1.0), two).init(P))
    assert fresh == unused == ()
    compare(equal, state, old)


@pytest.mark.parametrize(
    "tx", [stepax.adam(1e-3), stepax.MultiSteps(stepax.lion(1.0), 2)]
)
def test_names_without_classes_will_do(tx):
    old = trained(stepax.adam(1e-3))
    plain = flax.serialization.to_state_dict(old)
    found, wanted = migrate(plain, tx.init(P)), migrate(old, tx.init(P))
    assert found.fresh == wanted.fresh
    compare(equal, found.state, wanted.state)


def test_dtypes_are_those_of_the_new_state():
    old = trained(stepax.adam(1e-3))
    state = migrate(old, stepax.adam(1e-3, mu_dtype=jnp.bfloat16).init(P)).state
    assert get(state, "mu/value").dtype == jnp.bfloat16
    np.testing.assert_allclose(get(state, "mu/value").astype(float), 0.271, rtol=1e-2)


@pytest.mark.parametrize("to", [stepax.skip_spikes, stepax.rollback, lambda tx: tx])
def test_of_copies_that_a_wrapper_keeps_the_present_state_is_carried(to):
    p, old = {"w": jnp.ones(3)}, stepax.rollback(stepax.rollback(stepax.adam(0.1)))
    state = old.init(p)
    for _ in range(3):
        _, state = old.update(p, state, p, value=jnp.float32(1.0))
    moved = stepax.tree.migrate(state, to(stepax.adam(0.1)).init(p)).state
    present = getattr(moved, "inner_state", moved)
    assert_same_tree(present, state.inner_state.inner_state)


def test_each_copy_of_two_states_gets_both():
    """Two counts of a class, in wrappers that hold both twice."""
    schedule = stepax.linear_schedule(1.0, 0.1, 10)
    rated, scaled = map(stepax.inject_hyperparams, (stepax.adam, stepax.scale))
    tx = stepax.chain(rated(schedule), scaled(schedule))
    p, old = {"w": jnp.ones(3)}, stepax.averages(tx)
    state = old.init(p)
    for _ in range(3):
        _, state = old.update(p, state, p)
    new = stepax.rollback(stepax.rollback(tx))
    moved = stepax.tree.migrate(state, new.init(p)).state
    for copy in (moved.inner_state.inner_state, moved.kept_state.kept_state):
        assert_same_tree(copy, state.inner_state)


@pytest.mark.few(8)
@pytest.mark.parametrize("name", WRAPPERS)
def test_halves_of_complex_parameters_are_told_apart(name):
    tx = stepax.contrib.split_real_and_imaginary(WRAPPERS[name](stepax.adam(0.1)))
    p = {k: jnp.full(shape, 1 + 1j) for k, shape in {"a": 3, "b": (2, 3)}.items()}
    state = jax.tree.map(lambda x: x + jnp.ones_like(x), tx.init(p))
    found, fresh, unused = migrate(state, stepax.chain(tx, stepax.identity()).init(p))
    assert fresh == unused == ()
    compare(equal, found[0], state)
