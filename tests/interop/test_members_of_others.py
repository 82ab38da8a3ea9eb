"""Descriptions of parameters, for which trainers call `init` as for parameters.

Optax's `init` takes them wherever the state contains nothing for each parameter, and
members that others wrote make their state of them.
"""

import inspect
from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import optax
import optax.contrib
import pytest
from cases import OTHERS, ROWS, make
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
    init, update = (
        lambda params: State(params),
        lambda u, state, params=None: (u, state),
    )
    return stepax.GradientTransformation(init, update)


NESTS = {
    "masked": lambda tx: stepax.masked(tx, {"a": True, "b": False}),
    "chain": lambda tx: stepax.chain(tx, stepax.identity()),
    "named_chain": lambda tx: stepax.named_chain(("x", tx)),
    "partition": lambda tx: stepax.partition({"x": tx}, {"a": "x", "b": "x"}),
    "nested": lambda tx: stepax.chain(stepax.masked(tx, {"a": True, "b": False})),
}


@each(NESTS)
def test_descriptions_reach_a_member_of_others(name):
    shapes: Any = {"a": Shape(2), "b": Shape(3)}
    state = NESTS[name](described()).init(shapes)
    found = stepax.tree.get(state, "sizes")
    assert found["a"] is shapes["a"]


@each(NESTS)
def test_members_of_ours_take_them_without_state(name):
    shapes: Any = {"a": Shape(2), "b": Shape(3)}
    NESTS[name](stepax.scale(2.0)).init(shapes)
    tx = NESTS[name](stepax.trace(0.9))
    with pytest.raises(TypeError, match="was given no array, but a `Shape` at"):
        tx.init(shapes)
    with pytest.raises(TypeError, match="was given no array, but a `Shape` at"):
        stepax.MultiSteps(tx, 2).init(shapes)
    tx.init({"a": jnp.ones(2), "b": jnp.ones(3)})


class Described:
    """As Praxis and T5X do."""

    shape, dtype = (3,), None


def outcome(init, params):
    try:
        return init(params)
    except (AttributeError, TypeError, ValueError) as error:
        return error


def of_optax(name):
    return getattr(optax, name, None) or getattr(optax.contrib, name, None)


# Optax's states of these have a boolean for each leaf, or the leaf itself.
NAMES = [x.name for x in ROWS.values() if x.kind not in OTHERS and of_optax(x.name)]
NAMES = [x for x in NAMES if x not in ("zero_nans", "sam", "lookahead")]


def on_stateless(row, library):
    """A wrapper around an optimizer without state, or what it is."""
    options = {k: library.sgd(0.1) for k in ("inner", "optimizer")}
    takes = inspect.signature(row.factory).parameters
    given = {k: x for k, x in options.items() if k in takes and row.kind == "wrapper"}
    factory = row.factory if library is stepax else of_optax(row.name)
    return make(replace(row, factory=factory), **given)


@pytest.mark.thinned
@pytest.mark.parametrize("name", NAMES)
def test_descriptions_are_taken_as_by_optax(name):
    """Functions and text are taken by none."""
    ours, theirs = (on_stateless(ROWS[name], x) for x in (stepax, optax))
    params: Any = {"w": Described()}
    wanted, found = (outcome(tx.init, params) for tx in (theirs, ours))
    assert isinstance(wanted, Exception) or not isinstance(found, Exception), found
    for other in (lambda x: x, "w"):
        assert isinstance(outcome(ours.init, {"w": other}), TypeError)
