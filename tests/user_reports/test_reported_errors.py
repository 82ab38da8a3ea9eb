"""Wrong shapes, trees and arguments: refused, where they are, and never broadcast."""

import cases
import jax
import jax.numpy as jnp
import library
import pytest
from keywords import keywords
from library import make, optax


row = pytest.mark.row
WRONG = "wrong shapes and trees"


def parameters():
    return {"w": jnp.ones((4, 3)), "b": jnp.ones(3)}


def narrow():
    """The same, but for one array that would broadcast."""
    return parameters() | {"w": jnp.ones((4, 1))}


def shapes(tree):
    return jax.tree.map(jnp.shape, tree)


KINDS = ("gradient", "parameter", "state")


@pytest.mark.few(1)
@row(WRONG, optax="fails")
@pytest.mark.parametrize("wrong", KINDS)
@pytest.mark.parametrize("row", cases.rows())
def test_shapes_that_differ_never_broadcast(row, wrong):
    tx = make(row)
    given = {k: narrow() if k == wrong else parameters() for k in KINDS}
    state, g = tx.init(given["state"]), given["gradient"]
    try:
        u, new = tx.update(g, state, given["parameter"], **keywords(g))
    except (ValueError, TypeError) as error:
        assert "['w']" in str(error) or "the root" in str(error)
    else:  # it does not look at what is wrong
        assert shapes(u) == shapes(g)
        assert shapes(new) == shapes(state)


@pytest.mark.few(3)
@row(WRONG, optax="fails")
@pytest.mark.parametrize("row", library.rows(kind="optimizer"))
def test_a_gradient_that_is_nowhere_else_is_named(row):
    tx, p = make(row), parameters()
    g = p | {"x": jnp.ones(2)}
    with pytest.raises((ValueError, TypeError)) as error:
        u, _ = tx.update(g, tx.init(p), p, **keywords(g))
        optax.apply_updates(p, u)
    assert "['x']" in str(error.value)


@row(WRONG, optax="fails")
@pytest.mark.parametrize("shape", [(4, 1), (3,), (1,), ()])
def test_an_update_of_another_shape_is_not_added(shape):
    with pytest.raises(ValueError, match=r"\['w'\]"):
        optax.apply_updates(parameters(), parameters() | {"w": jnp.ones(shape)})


@row(WRONG, optax="fails")
@pytest.mark.parametrize("row", library.rows(kind="optimizer"))
def test_an_optimizer_that_was_not_called_is_named(row):
    home = optax if hasattr(optax, row.name) else optax.contrib
    with pytest.raises(TypeError, match=rf"did you mean `{row.name}\(...\)`"):
        optax.chain(optax.clip(1.0), getattr(home, row.name))


WRAPPERS = {
    "chain": lambda tx: optax.chain(optax.clip(1.0), tx),
    "named_chain": lambda tx: optax.named_chain(("a", tx)),
    "masked": lambda tx: optax.masked(tx, True),
    "partition": lambda tx: optax.partition({"a": tx}, "a"),
    "MultiSteps": lambda tx: optax.MultiSteps(tx, 2),
    "apply_if_finite": lambda tx: optax.apply_if_finite(tx, 2),
    "flatten": lambda tx: optax.flatten(tx),
    "conditionally_transform": lambda tx: optax.conditionally_transform(tx, bool),
}


@row(WRONG, optax="fails")
@pytest.mark.parametrize("wrong", [None, 3, jnp.ones(2)], ids=["None", "3", "array"])
@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_takes_no_other_thing(name, wrong):
    with pytest.raises(TypeError, match="must be a gradient transformation"):
        WRAPPERS[name](wrong)


@row(WRONG, optax="fails")
def test_an_unknown_label_is_named_with_its_path():
    tx = optax.partition({"a": optax.sgd(0.1)}, {"w": "a", "b": "typo"})
    with pytest.raises(ValueError, match=r"'typo' at \['b'\]"):
        tx.init(parameters())


@row(WRONG, optax="fails")
@pytest.mark.parametrize("k", [0, -1])
def test_a_step_needs_at_least_one_gradient(k):
    with pytest.raises(ValueError, match="at least 1"):
        optax.MultiSteps(optax.sgd(0.1), k)


@row(WRONG, optax="fails")
@pytest.mark.parametrize("count", [0, 1])
def test_joined_schedules_need_a_boundary_between_each_two(count):
    parts = [optax.constant_schedule(0.1)] * 3
    with pytest.raises(ValueError, match="boundaries"):
        optax.join_schedules(parts, list(range(1, count + 1)))


@row(WRONG, optax="fails")
@pytest.mark.parametrize("row", library.rows(kind="optimizer", takes="learning_rate"))
def test_a_rate_that_is_infinite_is_refused(row):
    with pytest.raises(ValueError, match="`learning_rate` must be"):
        make(row, learning_rate=float("inf"))


@pytest.mark.few(27)
@row(WRONG, optax="fails")
@pytest.mark.parametrize("other", [(), {"count": 3}, (1, 2, 3)], ids=str)
@pytest.mark.parametrize("row", library.rows(kind="optimizer"))
def test_a_state_of_something_else_is_refused(row, other):
    tx, p = make(row), parameters()
    state = tx.init(p)
    if not jax.tree.leaves(state) or jax.tree.structure(state) == other:
        pytest.skip("it has no state that could be wrong")
    with pytest.raises(ValueError, match="made by another optimizer"):
        tx.update(p, other, p, **keywords(p))
