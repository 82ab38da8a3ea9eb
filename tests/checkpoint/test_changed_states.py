"""States whose class changes after `init` are restored as they were saved."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import make, rows
from compare import assert_equal
from keywords import keywords
from wrappers import FAMILIES, WRAPPERS

import stepax
from stepax.checkpoint import restore, save


PARAMS = {"w": jnp.linspace(-1.0, 1.0, 12).reshape(4, 3), "b": jnp.ones(3)}


def stepped(tx: Any, state: Any, **more: Any) -> Any:
    g = jax.tree.map(lambda p: 0.3 * p + 0.1, PARAMS)
    return tx.update(g, state, PARAMS, **keywords(g), **more)[1]


def gathered(weighted: bool, inner: Any = None) -> Any:
    inner = stepax.adam(0.1) if inner is None else inner
    return stepax.MultiSteps(inner, 3, weighted=weighted).gradient_transformation()


def same(found: Any, wanted: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    assert_equal(found, wanted)


# What is around an accumulation.
AROUND: dict[str, Any] = {
    "alone": lambda tx: tx,
    "in a chain": lambda tx: stepax.chain(stepax.clip(1.0), tx),
    "in a wrapper": stepax.averages,
    "twice": lambda tx: gathered(False, tx),
    "in groups": lambda tx: stepax.partition(
        {"a": tx, "b": gathered(False)}, {"w": "a", "b": "b"}
    ),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("calls", [(None,), (2.0,), (None, 2.0), (1.0, None)], ids=str)
@pytest.mark.parametrize("forms", [(x, y) for x in (0, 1) for y in (0, 1)], ids=str)
@pytest.mark.parametrize("name", AROUND)
def test_an_accumulation_is_restored_from_either_form_to_either(
    name, forms, calls, tmp_path
):
    before, after = (AROUND[name](gathered(bool(x))) for x in forms)
    state = before.init(PARAMS)
    for weight in calls:
        more = {} if weight is None else {"weight": jnp.float32(weight)}
        state = stepped(before, state, **more)
    save(tmp_path, 1, PARAMS, state)
    found = restore(tmp_path, after, PARAMS).state
    weights = stepax.tree.get_all_with_path(state, "WeightedMultiStepsState")
    if not forms[1] or weights and name == "alone":
        same(found, state)
    gathers = (stepax.tree.get_all_with_path(s, "acc_grads") for s in (found, state))
    for (_, x), (_, y) in zip(*gathers, strict=True):
        assert_equal(x, y)
    if name == "twice":  # where each call needs the form that it has already
        return
    more = {"weight": jnp.float32(1.5)}
    assert_equal(
        jax.tree.leaves(stepped(after, found, **more)),
        jax.tree.leaves(stepped(before, state, **more)),
    )


SWAPS: dict[str, Any] = {
    "one": (lambda: stepax.averages(stepax.adam(0.1), 0.9), None),
    "of two": (lambda: stepax.averages(stepax.sgd(0.1), {"a": 0.9, "b": 0.99}), "b"),
    "inside": (
        lambda: stepax.chain(stepax.clip(1.0), stepax.averages(stepax.adam(0.1))), None
    ),
    "halved": (lambda: stepax.averages(stepax.sgd(0.1), 0.9, remainder=16), None),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", SWAPS)
def test_an_average_that_is_exchanged_is_restored_so(name, tmp_path):
    make_tx, which = SWAPS[name]
    params = jax.tree.map(lambda x: x.astype("bfloat16"), PARAMS)
    tx = make_tx()
    state = tx.init(params)
    g = jax.tree.map(lambda p: 0.3 * p, params)
    state = tx.update(g, state, params)[1]
    swapped, average = stepax.swap_averages(state, params, which)
    save(tmp_path, 1, average, swapped)
    found = restore(tmp_path, make_tx(), params)
    same(found.state, swapped)
    back, again = stepax.swap_averages(found.state, found.params)
    same(back, state)
    assert_equal(again, params)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "make_tx",
    [pytest.param(lambda row=row.values[0]: make(row), id=row.id) for row in rows()]
    + [
        pytest.param(lambda w=w: w(FAMILIES["momentum"]()), id=f"wrapped: {name}")
        for name, w in WRAPPERS.items()
    ],
)
def test_what_a_weight_makes_of_a_state_is_restored(make_tx, tmp_path):
    """Of each factory and wrapper, after a call with a weight where it takes one."""
    tx = make_tx()
    state = tx.init(PARAMS)
    try:
        state = stepped(tx, state, weight=jnp.float32(2.0))
    except TypeError:
        state = stepped(tx, state)
    save(tmp_path, 1, PARAMS, state)
    same(restore(tmp_path, make_tx(), PARAMS).state, state)
    assert np.isfinite(np.asarray(PARAMS["w"])).all()
