"""Wrong calls fail early, and the message names the leaf and what to do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stepax


PARAMS = {"layer": {"w": jnp.ones((4, 3)), "b": jnp.ones(3)}}


def raises(kind, *words):
    """Expect an error whose message contains all words."""
    return pytest.raises(kind, match="(?s)" + "".join(f"(?=.*{w})" for w in words))


def with_leaf(**leaves):
    return {"layer": {**PARAMS["layer"], **leaves}}


NEEDS_PARAMS = {
    "adamw": lambda: stepax.adamw(1e-3),
    "lion": lambda: stepax.lion(1e-3),
    "masked": lambda: stepax.masked(stepax.adamw(1e-3), True),
    "partition": lambda: stepax.partition({"a": stepax.adamw(1e-3)}, "a"),
    "MultiSteps": lambda: stepax.MultiSteps(stepax.adamw(1e-3), 1),
}


@pytest.mark.parametrize("name", NEEDS_PARAMS)
def test_missing_params(name):
    tx = NEEDS_PARAMS[name]()
    with raises(
        ValueError, "`params` is missing", "update\\(updates, state, params\\)"
    ):
        tx.update(PARAMS, tx.init(PARAMS))


@pytest.mark.parametrize("make", [stepax.adam, stepax.sgd, stepax.rmsprop])
def test_params_are_asked_for_only_where_they_are_read(make):
    tx = make(1e-3)
    found, wanted = (
        tx.update(PARAMS, tx.init(PARAMS), *params) for params in ((), (PARAMS,))
    )
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


def test_params_of_another_structure():
    tx = stepax.adamw(1e-3)
    state = tx.init(PARAMS)
    with raises(ValueError, "`params`", "the gradients", "\\['extra'\\]"):
        tx.update(PARAMS, state, with_leaf(extra=jnp.ones(2)))
    with raises(ValueError, "only in the gradients", "\\['layer'\\]\\['b'\\]"):
        tx.update(PARAMS, state, {"layer": {"w": jnp.ones((4, 3))}})


def test_a_gradient_of_the_wrong_shape_never_broadcasts():
    tx = stepax.adamw(1e-3)
    wrong = with_leaf(w=jnp.ones(3))
    with raises(ValueError, "\\['layer'\\]\\['w'\\]", "\\(3,\\)", "\\(4, 3\\)"):
        tx.update(wrong, tx.init(PARAMS), PARAMS)


@pytest.mark.parametrize("make", [stepax.adam, stepax.lion, stepax.rmsprop])
def test_a_state_of_other_shapes(make):
    tx = make(1e-3)
    state = tx.init(with_leaf(w=jnp.ones((4, 2))))
    with raises(ValueError, "\\['layer'\\]\\['w'\\]", "\\(4, 3\\)", "\\(4, 2\\)"):
        tx.update(PARAMS, state, PARAMS)


def test_gradients_with_a_leaf_that_init_did_not_see():
    tx = stepax.adam(1e-3)
    with raises(ValueError, "mu", "\\['layer'\\]\\['b'\\]"):
        tx.update(PARAMS, tx.init({"layer": {"w": jnp.ones((4, 3))}}))
    with raises(ValueError, "`mu`", "\\['layer'\\]\\['b'\\]", "`init`"):
        tx.update(PARAMS, tx.init(with_leaf(b=None)))


def test_a_gradient_without_a_parameter():
    tx = stepax.add_decayed_weights(1e-3)
    with raises(ValueError, "\\['layer'\\]\\['b'\\]", "no array in `params`"):
        tx.update(PARAMS, tx.init(PARAMS), with_leaf(b=None))


def test_a_gradient_that_is_no_array():
    tx = stepax.sgd(1e-3)
    with raises(TypeError, "\\['layer'\\]\\['b'\\]", "`str`", "`None`"):
        tx.update(with_leaf(b="text"), tx.init(PARAMS))


STATES_OF_OTHERS = {
    "adam's for lion": (stepax.lion, stepax.adam),
    "lion's for adam": (stepax.adam, stepax.lion),
    "adabelief's for adam": (stepax.adam, stepax.adabelief),
    "sgd's for adam": (stepax.adam, stepax.sgd),
    "adam's for sgd": (stepax.sgd, stepax.adam),
}


@pytest.mark.parametrize("name", STATES_OF_OTHERS)
def test_a_state_of_another_optimizer(name):
    make, other = STATES_OF_OTHERS[name]
    with raises(ValueError, "made by another optimizer"):
        make(1e-3).update(PARAMS, other(1e-3).init(PARAMS), PARAMS)


def test_a_keyword_that_a_rule_reads():
    from inside import build

    from stepax.rules import Rule

    def prepare(scalars, stat, extra):
        return extra["value"], scalars

    tx = build(Rule(lambda g, p, ctx: (ctx * g,), prepare=prepare, reads=("value",)))
    with raises(TypeError, "`value`", "update\\(updates, state, params, value=...\\)"):
        tx.update(PARAMS, tx.init(PARAMS))
    u, _ = tx.update(PARAMS, tx.init(PARAMS), value=jnp.float32(2.0))
    assert u["layer"]["b"][0] == 2


def test_errors_are_the_same_under_jit():
    tx = stepax.adamw(1e-3)
    wrong = with_leaf(w=jnp.ones(3))
    with raises(ValueError, "\\['layer'\\]\\['w'\\]"):
        jax.jit(tx.update)(wrong, tx.init(PARAMS), PARAMS)
