"""What is said of a name that is not in a state."""

import functools
import inspect
import warnings

import jax
import jax.numpy as jnp
import pytest
from cases import make
from inside import ROWS
from loops import each

import stepax
from stepax._engine.trees.search import _names


PARAMS = {"w": jnp.ones((2, 2)), "b": jnp.ones(2)}

# Of each optimizer the names in its state that are long enough to be misspelled.
STATES = {
    f"{row.name}, {name}": (row, name)
    for row in ROWS.values()
    if row.kind == "optimizer" and not row.matrices_only
    for name in {*_names(jax.eval_shape(make(row).init, PARAMS))}
    if len(name) > 6
}


@functools.cache
def state_of(name):
    return make(ROWS[name]).init(PARAMS)


@each(STATES)
def test_a_misspelled_name_is_said(case):
    row, name = STATES[case]
    state = state_of(row.name)
    wrong = name[:3] + name[4:]
    with pytest.warns(UserWarning, match=f"`{wrong}`; the nearest names are.*`{name}`"):
        assert stepax.tree.get(state, wrong) is None


def test_what_is_asked_for_on_purpose_is_not_said():
    state = stepax.adam(0.1).init(PARAMS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert stepax.tree.get(state, "learning_rate") is None
        assert stepax.tree.get(state, "cuont", 3) == 3
        assert stepax.tree.get(state, "count") == 0
        assert stepax.tree.get(state, ("a", "key")) is None


HYPERPARAMS = {
    f"{row.name}, {name}": (row, name)
    for row in ROWS.values()
    if row.kind == "optimizer" and not row.matrices_only
    for name in inspect.signature(row.factory).parameters
    if name in ("learning_rate", "weight_decay", "b1", "b2", "eps", "momentum")
}


@pytest.mark.slow
@each(HYPERPARAMS)
def test_a_hyperparameter_is_in_the_state_if_it_is_injected(case):
    row, name = HYPERPARAMS[case]
    state = state_of(row.name)
    if stepax.tree.get_all_with_path(state, name):
        return  # kept as it was at the last step
    with pytest.raises(KeyError, match=f"no value is named `{name}`.*`inject_hyperpa"):
        stepax.tree.set(state, **{name: 0.1})
    state = stepax.inject_hyperparams(stepax.adam)(0.1).init(PARAMS)
    with pytest.raises(KeyError) as error:
        stepax.tree.set(state, learnin_rate=0.1)
    assert "inject_hyperparams" not in str(error.value)
