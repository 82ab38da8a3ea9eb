"""Where parameters hold nothing, states hold what Optax's do."""

import inspect

import jax
import jax.numpy as jnp
import optax
import optax.contrib
import pytest
from cases import ARGUMENTS, MADE, make, rows
from fuzz.world import Record
from keywords import keywords

import stepax


TREES = {
    "class": Record(jnp.ones(3), [None, ()]),
    "dict": {"w": jnp.ones((3, 3)), "n": None, "e": {}},
    "nested": {"w": {"x": jnp.ones((3, 3))}, "n": {"y": None, "z": jnp.ones(2)}},
    "tuple": (None, jnp.ones(2), ()),
}

# They read a function of the loss; and the other has a place for each measure from the
# start, where Optax has one after the first step.
LEFT_OUT = {"adahessian", "sophia", "monitor"}


def structures(factory, p) -> list[str]:
    """Of the first state, and of what an update gives."""
    needed = inspect.signature(factory).parameters.values()
    given = {
        q.name: ARGUMENTS[q.name]() if q.name in MADE else ARGUMENTS[q.name]
        for q in needed
        if q.default is q.empty
    }
    tx = stepax.with_extra_args_support(factory(**given))
    state = tx.init(p)
    after = tx.update(p, state, p, **keywords(p))
    return [str(jax.tree.structure(x)) for x in (state, *after)]


def both(row):
    theirs = getattr(optax, row.name, getattr(optax.contrib, row.name, None))
    return row.factory, theirs


COMPARED = [
    x
    for x in rows()
    if x.values[0].kind != "wrapper"
    and x.values[0].name not in LEFT_OUT
    and both(x.values[0])[1]
]


@pytest.mark.few(2)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("row", COMPARED)
def test_the_structure_is_that_of_optax(row, tree):
    ours, theirs = both(row)
    found = structures(ours, TREES[tree])
    try:
        with jax.numpy_dtype_promotion("standard"):
            wanted = structures(theirs, TREES[tree])
    except (ValueError, TypeError, AttributeError, IndexError):
        wanted = found  # it takes no `None` there
    assert found == wanted


# Labels of nodes without leaves, and of nothing but these.
MASKS = {
    "masked": lambda tx: stepax.masked(tx, {"w": True, "b": False}),
    "masked twice": lambda tx: stepax.masked(
        stepax.masked(tx, {"w": True, "b": True}), {"w": True, "b": False}
    ),
    "partition": lambda tx: stepax.partition(
        {"a": tx, "b": stepax.trace(0.9)}, {"w": "a", "b": "b"}
    ),
    "of nothing": lambda tx: stepax.masked(tx, {"w": False, "b": True}),
}


# Searches read the whole `grad`, which does not fit a masked tree, as in Optax.
def searches(row):
    return "_linesearch" in row.factory.__module__


@pytest.mark.few(2)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("row", [x for x in rows() if not searches(x.values[0])])
def test_a_mask_of_a_node_without_leaves_keeps_the_structure(row, mask):
    p = {"w": jnp.ones((3, 3)), "b": {"x": {}, "y": ()}}
    tx = MASKS[mask](make(row))
    state = jax.jit(tx.init)(p)
    _, after = tx.update(p, state, p, **keywords(p))
    assert jax.tree.structure(after) == jax.tree.structure(state)


@pytest.mark.parametrize("home", [stepax.contrib, optax.contrib], ids=["ours", "optax"])
def test_what_has_no_dimension_numbers_is_masked_and_nothing_is_not(home):
    numbers = lambda p: home.MuonDimensionNumbers() if p.ndim == 2 else None
    spec = lambda params: jax.tree.map(numbers, params)
    tx = home.muon(0.1, muon_weight_dimension_numbers=spec)
    params = {"w": jnp.ones((3, 3)), "b": jnp.ones(3), "n": None}
    state = tx.init(params)
    mu = optax.tree.get(state.inner_states["muon"], "mu")
    nu = optax.tree.get(state.inner_states["adam"], "nu")
    names = [type(x).__name__ for x in (mu["b"], nu["w"])]
    assert names == ["MaskedNode", "MaskedNode"] and mu["n"] is nu["n"] is None
