"""What is restored where, by kinds of arrays and by changes of labels.

The table in `docs/checkpoints.md` says this; each of its cells is a case here.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from inside import Policy
from saved import passed_on

import stepax


P = {"w": jnp.ones((4, 3)), "v": jnp.ones(3)}
BOTH = {"w": "a", "v": "b"}


def adam(n):
    return stepax.inject_hyperparams(stepax.adam)(0.1 * n)


def noise(n):
    return stepax.add_noise(0.1, 0.55, n)


def groups(make, labels, **groups):
    return stepax.partition({k: make(n) for k, n in groups.items()}, labels)


def stages(make, **names):
    return stepax.named_chain(*((k, make(n)) for k, n in names.items()))


def averages(**decays):
    return stepax.averages(stepax.sgd(0.1), {k: 0.9 for k in decays})


def kinds(of):
    """What is asked for: each kind of array, as what it is found in."""
    return {"slot": adam, "count": adam, "hyperparameter": adam, "key": noise}[of]


# For each change: the transformation before and after, as functions of what makes one.
CHANGES: dict[str, Any] = {
    "none": (
        lambda m: groups(m, BOTH, a=1, b=2),
        lambda m: groups(m, BOTH, a=3, b=4),
    ),
    "wrapped": (
        lambda m: m(1),
        lambda m: stepax.apply_if_finite(stepax.chain(stepax.clip(1.0), m(3)), 2),
    ),
    "into a group": (
        lambda m: m(1),
        lambda m: groups(m, {"w": "a", "v": "a"}, a=3),
    ),
    "new group": (
        lambda m: m(1),
        lambda m: groups(m, BOTH, a=3, b=4),
    ),
    "renamed group": (
        lambda m: groups(m, BOTH, a=1, b=2),
        lambda m: groups(m, {"w": "c", "v": "b"}, c=3, b=4),
    ),
    "renamed stage": (
        lambda m: stages(m, x=1, y=2),
        lambda m: stages(m, y=3, z=4),
    ),
}
# In the order of the table: a slot, a count, a hyperparameter or random key.
EXPECTED = {
    "none": ("same", "same", "same"),
    "wrapped": ("same", "same", "same"),
    "into a group": ("same", "same", "same"),
    "new group": ("same", "same", "missing"),
    "renamed group": ("same", "same", "missing"),
    "renamed stage": ("missing", "missing", "missing"),
}
FIELDS = {
    "slot": "mu",
    "count": "count",
    "hyperparameter": "learning_rate",
    "key": "rng_key",
}
COLUMN = {"slot": 0, "count": 1, "hyperparameter": 2, "key": 2}


def state_of(tx):
    """A state after three steps, with numbers that tell its arrays apart."""
    state = tx.init(P)
    for i in range(3):
        state = tx.update(jax.tree.map(lambda p, i=i: p * (i + 1), P), state, P)[1]
    return state


def arrays(state, field):
    """Random keys as integers."""
    found = [x for _, x in stepax.tree.get_all_with_path(state, field)]
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    read = lambda x: jax.random.key_data(x) if is_key(x) else x
    return [np.asarray(read(x)) for x in jax.tree.leaves(found)]


@pytest.mark.few(3)
@pytest.mark.parametrize("kind", FIELDS)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.filterwarnings("ignore::stepax.checkpoint.RestoreWarning")
def test_what_is_restored_where(change, kind):
    before, after = (make(kinds(kind)) for make in CHANGES[change])
    state, first = state_of(before), after.init(P)
    try:
        passed_on(state, after, P)
        strict = "same"
    except ValueError as error:
        strict = str(error)
        assert "missing: " in strict or "several candidates" in strict
    found = passed_on(state, after, P, Policy("fresh", "drop"))
    rows = [arrays(x, FIELDS[kind]) for x in (found, first, state)]
    if EXPECTED[change][COLUMN[kind]] == "same":
        values = [x.tobytes() for x in rows[2]]
        assert all(x.tobytes() in values for x in rows[0])
        return
    assert strict != "same"
    # What has no label of its own is as in a first state; the rest is as saved.
    is_new = [x.tobytes() == y.tobytes() for x, y in zip(*rows[:2], strict=True)]
    assert any(is_new) and (change == "new group" or not all(is_new))


@pytest.mark.few(2)
@pytest.mark.filterwarnings("ignore::stepax.checkpoint.RestoreWarning")
@pytest.mark.parametrize("kind", FIELDS)
@pytest.mark.parametrize("change", ["renamed group", "renamed stage"])
def test_labels_can_be_renamed(change, kind):
    before, after = (make(kinds(kind)) for make in CHANGES[change])
    state = state_of(before)
    renamed = {"a": "c"} if change == "renamed group" else {"x": "z"}
    found = passed_on(state, after, P, renamed=renamed)
    was, now = (
        sorted(x.tobytes() for x in arrays(s, FIELDS[kind])) for s in (state, found)
    )
    assert was == now


def test_an_average_of_another_name_is_not_taken():
    state = state_of(averages(fast=1, slow=2))
    for names in {"mid": 1, "slow": 2}, {"mid": 1, "fast": 2}:
        with pytest.raises(ValueError, match="missing: .*extra: .*renames labels") as e:
            passed_on(state, averages(**names), P)
        missing, extra = str(e.value).split("extra: ")
        assert "`AverageState.average/v` under `averages/mid`" in missing
        assert "`AverageState.average/v` under `averages/" in extra
    found = passed_on(state, averages(mid=1, slow=2), P, renamed={"fast": "mid"})
    for x, y in zip(arrays(found, "average"), arrays(state, "average"), strict=True):
        assert x.tobytes() == y.tobytes()


def test_parts_without_an_order_are_not_paired_in_one():
    """A dict of stages is flattened by its keys, whatever their order was."""
    old = stepax.chain(stepax.scale_by_adam(b1=0.9), stepax.scale_by_adam(b1=0.5))
    new = stepax.named_chain(
        ("z", stepax.scale_by_adam(b1=0.9)), ("a", stepax.scale_by_adam(b1=0.5))
    )
    with pytest.raises(ValueError, match="missing: .*extra: "):
        passed_on(state_of(old), new, P)


@pytest.mark.project
def test_the_page_has_the_table():
    page = Path(stepax.__file__).parents[1] / "docs" / "checkpoints.md"
    text = page.read_text()
    for change, (slot, count, other) in EXPECTED.items():
        assert f"| {change} | {slot} | {count} | {other} |" in text


# --- what is told ---------------------------------------------------------------------

ALIKE = ["adam", "adamax", "yogi", "radam", "lamb", "adamw", "nadam"]


@pytest.mark.few(2)
@pytest.mark.parametrize("new", ALIKE)
def test_another_optimizer_with_the_same_state_is_told(new, tmp_path):
    tx, other = stepax.adam(0.1), getattr(stepax, new)(0.1)
    stepax.checkpoint.save(tmp_path, 1, P, tx.init(P), tx=tx)
    if new == "adam":
        stepax.checkpoint.restore(tmp_path, stepax.chain(stepax.clip(1.0), other), P)
        return
    words = f"saved with `adam`, restored with `{new}`"
    with pytest.warns(stepax.checkpoint.RestoreWarning, match=words):
        stepax.checkpoint.restore(tmp_path, other, P)


def test_a_transformation_that_is_no_data_is_saved_without_its_recipe(tmp_path):
    tx = stepax.masked(stepax.adam(0.1), lambda p: {"w": True, "v": False})
    stepax.checkpoint.save(tmp_path, 1, P, tx.init(P), tx=tx)
    stepax.checkpoint.restore(tmp_path, tx, P)


injected = lambda make, *args, **how: stepax.inject_hyperparams(make)(*args, **how)
# An optimizer, the same one with another argument, and what is told.
REPLACED: dict[str, Any] = {
    "injected": (lambda x: injected(stepax.adam, x), 0.1, 0.2, "learning_rate` is 0.1"),
    "muon": (
        lambda x: stepax.contrib.muon(0.1, ns_coeffs=x),
        (3.4445, -4.775, 2.0315),
        (2.0, -1.5, 0.5),
        "ns_coeffs` is ",
    ),
    "schedule_free": (
        lambda x: stepax.contrib.schedule_free_sgd(0.1, b1=x),
        0.9, 0.8, "b1` is 0.9, not 0.8",
    ),
    "in a group": (
        lambda x: stepax.partition(
            {"a": injected(stepax.adam, x), "b": stepax.sgd(0.1)}, BOTH
        ), 0.1, 0.2, "learning_rate` is 0.1",
    ),
}  # fmt: skip


@pytest.mark.few(4)
@pytest.mark.parametrize("template", ["arrays", "shapes"])
@pytest.mark.parametrize("name", REPLACED)
def test_hyperparameters_that_are_replaced_are_told(name, template, tmp_path):
    make, old, new, words = REPLACED[name]
    like = P if template == "arrays" else jax.eval_shape(lambda: P)
    stepax.checkpoint.save(tmp_path, 1, P, make(old).init(P))
    stepax.checkpoint.restore(tmp_path, make(old), like)  # silently
    with pytest.warns(stepax.checkpoint.RestoreWarning, match=words):
        stepax.checkpoint.restore(tmp_path, make(new), like)


def test_what_a_schedule_sets_is_not_told(tmp_path):
    tx = injected(stepax.adam, stepax.linear_schedule(1.0, 0.1, 10))
    stepax.checkpoint.save(tmp_path, 1, P, state_of(tx))
    stepax.checkpoint.restore(tmp_path, tx, P)
