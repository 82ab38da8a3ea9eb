# pyright: reportArgumentType=false
"""Members that others wrote decide themselves what `init` takes.

Trainers call `init` of a nest with descriptions of parameters, such as shapes, and a
transformation of their own in it makes the state of them.
"""

from typing import NamedTuple

import jax.numpy as jnp
import pytest
from loops import each

import stepax


class Shape:
    """Describes a parameter; a leaf, and no array."""

    def __init__(self, *sizes):
        self.sizes = sizes


class State(NamedTuple):
    sizes: dict


def described():
    """Keeps what it was given."""
    return stepax.GradientTransformation(
        State, lambda u, state, params=None: (u, state)
    )


NESTS = {
    "masked": lambda tx: stepax.masked(tx, {"a": True, "b": False}),
    "chain": lambda tx: stepax.chain(tx, stepax.identity()),
    "named_chain": lambda tx: stepax.named_chain(("x", tx)),
    "partition": lambda tx: stepax.partition({"x": tx}, {"a": "x", "b": "x"}),
    "nested": lambda tx: stepax.chain(stepax.masked(tx, {"a": True, "b": False})),
}


@each(NESTS)
def test_descriptions_reach_a_member_of_others(name):
    shapes = {"a": Shape(2), "b": Shape(3)}
    state = NESTS[name](described()).init(shapes)
    found = stepax.tree.get(state, "sizes")
    assert found["a"] is shapes["a"]


@each(NESTS)
def test_members_of_ours_need_arrays(name):
    tx = NESTS[name](stepax.scale(2.0))
    with pytest.raises(TypeError, match="was given no array, but a `Shape` at"):
        tx.init({"a": Shape(2), "b": Shape(3)})
    tx.init({"a": jnp.ones(2), "b": jnp.ones(3)})
