"""Wrappers in wrappers: every ordered pair, and a sample of triples.

A pair runs around one family of optimizers, and with its place in the table comes the
next family, so that each wrapper meets each of them, from the inside and the outside.
"""

import pickle
import tempfile
from collections import OrderedDict
from pathlib import Path

import flax.serialization
import hypothesis
import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
import pytest
from cases import types
from compare import assert_same_tree
from hypothesis import strategies as st
from runs import traced
from wrappers import FAMILIES, WRAPPERS, nest

import stepax


LOSSES = 3.0, 2.0, 1.0


def parameters():
    return {"w": jnp.ones((4, 3)), "none": None, "b": jnp.full(3, 0.5, jnp.bfloat16)}


def gradients():
    """Those of a few steps, of which the second has a NaN."""
    w = jnp.arange(1.0, 13.0).reshape(4, 3) / 16
    b = jnp.array([0.25, -0.5, 0.75], jnp.bfloat16)
    g = {"w": w, "none": None, "b": b}
    double = jax.tree.map(lambda x: 2 * x, g)
    return [g, g | {"w": w.at[0, 1].set(jnp.nan)}, double, g]


def check(wrappers, family):
    """Run the nest; its last parameters and state are what they should be."""
    tx, p = nest(wrappers, family), parameters()
    first = tx.init(p)
    us, state = traced(tx, gradients(), p, value=jnp.float32(2.0))
    assert types(state) == types(first)
    assert [x.dtype for x in jax.tree.leaves(us)] == [
        x.dtype for x in jax.tree.leaves(p)
    ]
    for x in jax.tree.leaves((us, state)):
        assert jnp.isfinite(x).all()
    for _, value in stepax.tree.get_all_with_path(state, "seen"):
        assert value == 2.0 or len(wrappers) > 2  # three may need more steps
    marked = stepax.tree_map_params(tx, lambda _: "parameter", state)
    assert jax.tree.structure(marked) == jax.tree.structure(state)
    return first, state


# What Optax's named chains keep their states in, and Flax cannot write of itself.
def to_flax(state):
    return {k: flax.serialization.to_state_dict(x) for k, x in state.items()}


def from_flax(first, stored):
    pairs = (
        (k, flax.serialization.from_state_dict(first[k], stored[k])) for k in first
    )
    return OrderedDict(pairs)


flax.serialization.register_serialization_state(
    OrderedDict, to_flax, from_flax, override=True
)


@pytest.mark.slow
@pytest.mark.parametrize("inner", WRAPPERS)
@pytest.mark.parametrize("outer", WRAPPERS)
def test_every_wrapper_works_in_every_other(outer, inner):
    place = list(WRAPPERS).index(outer) + list(WRAPPERS).index(inner)
    first, state = check([outer, inner], list(FAMILIES)[place % len(FAMILIES)])
    assert_same_tree(pickle.loads(pickle.dumps(state)), state)
    assert_same_tree(
        flax.serialization.from_bytes(first, flax.serialization.to_bytes(state)), state
    )


triples = hypothesis.given(
    st.lists(st.sampled_from(list(WRAPPERS)), min_size=3, max_size=3),
    st.sampled_from(list(FAMILIES)),
)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_three_wrappers_work_in_each_other(part):
    some = hypothesis.settings(max_examples=10, deadline=None, database=None)
    hypothesis.seed(part)(some(triples(check_saved)))()


def check_saved(wrappers, family):
    first, state = check(wrappers, family)
    with tempfile.TemporaryDirectory() as folder, ocp.StandardCheckpointer() as saver:
        saver.save(Path(folder, "state"), state)
        saver.wait_until_finished()
        assert_same_tree(saver.restore(Path(folder, "state"), first), state)
