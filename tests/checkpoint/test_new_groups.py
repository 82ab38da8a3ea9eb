"""A group of parameters that is new in a state behaves like in a new optimizer."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from cases import make, rows
from compare import assert_equal
from inside import named
from keywords import keywords

import stepax
from stepax import checkpoint


def params() -> Any:
    """A matrix and a vector in both groups, of different shapes."""
    w = lambda n, m: jnp.linspace(-1.0, 1.0, n * m).reshape(n, m) + 0.3
    return {
        "old": {"w": w(4, 3), "b": w(1, 3)[0]},
        "new": {"w": w(3, 2), "b": w(1, 2)[0]},
    }


def groups(row: Any, *trained: str) -> Any:
    txs = {k: make(row) if k in trained else stepax.set_to_zero() for k in params()}
    return stepax.partition(txs, {k: k for k in txs})


def steps(tx: Any, p: Any, state: Any, n: int) -> tuple[Any, Any, Any]:
    @jax.jit
    def step(p, state):
        g = jax.tree.map(lambda p: 0.3 * p + 0.1, p)
        u, state = tx.update(g, state, p, **keywords(g))
        return u, stepax.apply_updates(p, u), state

    u = None
    for _ in range(n):
        u, p, state = step(p, state)
    return u, p, state


def _migrated(tx, p, state, tmp_path):
    return stepax.tree.migrate(state, tx.init(p)).state


def _restored(tx, p, state, tmp_path):
    checkpoint.save(tmp_path, 1, p, state)
    return checkpoint.restore(tmp_path, tx, p, missing="fresh", extra="drop").state


CARRIED = {"migrate": _migrated, "restore": _restored}


def with_counts_of_schedules(first: Any, carried: Any) -> Any:
    """A first state, with the carried values of states without slots."""
    rows = list(zip(named(first), named(carried), strict=True))
    place = lambda x: x.names[: len(x.names) - len(x.own)]
    with_slots = {place(x) for x, _ in rows if len(x.own) > 1}
    values = [x.value if place(x) in with_slots else y.value for x, y in rows]
    return jax.tree.structure(first).unflatten(values)


@pytest.mark.few(2)
@pytest.mark.parametrize("carry", CARRIED)
@pytest.mark.parametrize("row", rows(kind="optimizer"))
def test_a_new_group_steps_as_a_new_optimizer_does(row, carry, tmp_path):
    before, after = groups(row, "old"), groups(row, "old", "new")
    _, p, state = steps(before, params(), before.init(params()), 3)
    found = CARRIED[carry](after, p, state, tmp_path)
    first = with_counts_of_schedules(after.init(p), found)
    new, old = (steps(after, p, x, 2)[0] for x in (first, found))
    assert_equal(old["new"], new["new"])
    assert_equal(old["old"], steps(before, p, state, 2)[0]["old"])


def test_the_first_steps_of_a_new_group_are_of_the_size_of_the_learning_rate(tmp_path):
    opt = lambda: stepax.adam(stepax.linear_schedule(1e-3, 2e-3, 10))
    groups = lambda new: stepax.partition(
        {"old": opt(), "new": new}, {"old": "old", "new": "new"}
    )
    before, after = groups(stepax.set_to_zero()), groups(opt())
    p = params()
    state = stepax.tree.set(before.init(p), count=jnp.int32(20_000))
    for carry in CARRIED.values():
        found = carry(after, p, state, tmp_path)
        u, _, later = steps(after, p, found, 3)
        sizes = jax.tree.leaves(jax.tree.map(jnp.abs, u["new"]))
        assert all((x < 2.01e-3).all() for x in sizes)
        counts = stepax.tree.get_all_with_path(later, "count")
        # The moments are new, and the schedule goes on.
        assert sorted(int(x) for _, x in counts) == [3, 20_003, 20_003, 20_003]


SHARED = {
    "count": stepax.adam,
    "t": stepax.adan,
    "is_initial_step": stepax.optimistic_gradient_descent,
    "weight": lambda rate: stepax.contrib.splus(rate),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("carry", CARRIED)
@pytest.mark.parametrize("shared", SHARED)
def test_new_parameters_that_share_a_count_are_named(shared, carry, tmp_path):
    train = lambda mask: stepax.masked(SHARED[shared](0.1), mask)
    before, after = (
        train({"old": True, "new": False}),
        train({"old": True, "new": True}),
    )
    p = params()
    with pytest.warns(UserWarning, match="is old: .*new/b.* by `partition`, or"):
        CARRIED[carry](after, p, before.init(p), tmp_path)


NESTS = {
    "chain": lambda tx: stepax.chain(stepax.clip(1e3), tx),
    "named": lambda tx: stepax.named_chain(("x", tx)),
    "MultiSteps": lambda tx: stepax.MultiSteps(tx, 1).gradient_transformation(),
    "averages": lambda tx: stepax.averages(tx, 0.9),
    "rollback": lambda tx: stepax.rollback(tx, 5),
    "master": stepax.master_weights,
    "finite": lambda tx: stepax.apply_if_finite(tx, 3),
    "inject": lambda tx: stepax.inject_hyperparams(
        lambda rate: stepax.chain(tx, stepax.scale(rate))
    )(rate=1.0),
    "flatten": stepax.flatten,
    "masked": lambda tx: stepax.masked(
        tx, lambda p: jax.tree.map(lambda _: True, p)
    ),
}  # fmt: skip
# A vector of all parameters has no labels.
NESTED = [(k, "chain") for k in NESTS] + [("chain", k) for k in NESTS if k != "flatten"]


def _alike() -> Any:
    """Two groups of the same number of elements, so that their vectors are alike."""
    tree = params()["old"]
    return {"old": tree, "new": jax.tree.map(lambda x: 0.1 - x, tree)}


def _in_partition(tx: Any, *trained: str) -> Any:
    txs = {k: tx if k in trained else stepax.set_to_zero() for k in params()}
    return stepax.partition(txs, {k: k for k in txs})


def _in_masks(tx: Any, *trained: str) -> Any:
    only = lambda k: {x: x == k for x in params()}
    txs = {k: tx if k in trained else stepax.set_to_zero() for k in params()}
    return stepax.chain(*(stepax.masked(x, only(k)) for k, x in txs.items()))


@pytest.mark.few(4)
@pytest.mark.parametrize("of", [_in_partition, _in_masks])
@pytest.mark.parametrize("inside, around", NESTED)
def test_a_nested_group_is_new_too(inside, around, of):
    tx = NESTS[inside](stepax.adam(0.01))
    before, after = (NESTS[around](of(tx, *k)) for k in (["old"], ["old", "new"]))
    _, p, state = steps(before, _alike(), before.init(_alike()), 3)
    found = stepax.tree.migrate(state, after.init(p)).state
    u = steps(after, p, found, 2)[0]
    assert_equal(u["new"], steps(after, p, after.init(p), 2)[0]["new"])
    assert_equal(u["old"], steps(before, p, state, 2)[0]["old"])


def test_what_has_no_count_is_carried_silently(tmp_path):
    train = lambda mask: stepax.masked(stepax.sgd(0.1, 0.9), mask)
    before, after = (
        train({"old": True, "new": False}),
        train({"old": True, "new": True}),
    )
    p = params()
    found = stepax.tree.migrate(before.init(p), after.init(p))
    assert len(found.fresh) == 2


def test_injected_hyperparameters_of_a_new_group_are_carried():
    opt = lambda rate: stepax.inject_hyperparams(stepax.adam)(rate)
    before = stepax.partition(
        {"old": opt(0.1), "new": stepax.set_to_zero()}, {"old": "old", "new": "new"}
    )
    after = stepax.partition(
        {"old": opt(0.3), "new": opt(0.3)}, {"old": "old", "new": "new"}
    )
    p = params()
    state = steps(before, p, before.init(p), 2)[2]
    found = stepax.tree.migrate(state, after.init(p)).state
    rates = [x for _, x in stepax.tree.get_all_with_path(found, "learning_rate")]
    assert_equal(rates, [jnp.float32(0.1)] * 2)
    counts = stepax.tree.get_all_with_path(found, "count")
    assert sorted(int(x) for _, x in counts) == [0, 2, 2, 2]


def test_a_tree_that_is_one_array_is_new_as_a_whole():
    tx = stepax.adam(0.1)
    state = steps(tx, jnp.ones(3), tx.init(jnp.ones(3)), 2)[2]
    found = stepax.tree.migrate(state, tx.init(jnp.ones(4)))
    assert int(stepax.tree.get(found.state, "count")) == 0
    again = stepax.tree.migrate(state, tx.init(jnp.ones(3)))
    assert int(stepax.tree.get(again.state, "count")) == 2


FORMS = {
    "adam": stepax.adam(1e-3),
    "factored": stepax.adafactor(1e-3, min_dim_size_to_factor=2),
    "8 bits": stepax.low_bit_states(stepax.adam(1e-3), min_size=4),
    "masters": stepax.master_weights(stepax.adam(1e-3)),
    "remainders": stepax.master_weights(stepax.adam(1e-3), remainder=16),
    "averages": stepax.averages(stepax.adam(1e-3), remainder=8),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("form", FORMS)
def test_another_vocabulary_names_migrate(form, tmp_path):
    tx = FORMS[form]
    p, q = ({"embed": jnp.ones((n, 8), jnp.bfloat16)} for n in (8, 12))
    checkpoint.save(tmp_path, 1, p, tx.init(p))
    choices: list[Any] = [{}, {"missing": "fresh", "extra": "drop"}]
    for options in choices:
        with pytest.raises(ValueError, match=r"embed.*expected.*tree\.migrate"):
            checkpoint.restore(tmp_path, tx, q, **options)
