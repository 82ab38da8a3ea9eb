"""`proximal` puts the parameters where its operator does, after any step."""

import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from inside import node_of

import stepax
from stepax.rules import Rule
from stepax.solve import prox


PARAMS = {"w": jnp.array([[1.0, -0.05], [0.2, 3.0]]), "b": jnp.array([0.5, -0.01])}
GRADS = jax.tree.map(lambda p: 0.5 * p + 0.1, PARAMS)
RATE = stepax.linear_schedule(0.1, 0.5, 4)
FORMS: dict[str, Any] = {
    "l1": prox.l1(0.4),
    "box": prox.box(0.0, 0.3),
    "by path": {"w": prox.l1(0.4)},
    "weights": prox.l1({"w": 0.4, "b": 0.0}),
    "rows": prox.group_l2(0.4),
    "rows by path": {"w": prox.group_l2(0.4, 0), "b": prox.non_negative()},
    "all": prox.l1_ball(1.0),
}
RULES = {"l1", "box", "by path"}


@pytest.mark.few(2)
@pytest.mark.parametrize("rate", [0.1, RATE], ids=["number", "schedule"])
@pytest.mark.parametrize("form", FORMS)
def test_steps_end_where_the_operator_puts_them(form, rate):
    g = FORMS[form]
    tx: Any = stepax.chain(stepax.sgd(rate), stepax.proximal(g, rate))
    assert (form in RULES) == isinstance(node_of(stepax.proximal(g, rate)), Rule)
    state, params = tx.init(PARAMS), PARAMS
    for step in range(2):
        a = rate if isinstance(rate, float) else float(rate(step))
        wanted = {k: params[k] - a * GRADS[k] for k in params}
        if isinstance(g, dict):
            wanted |= {k: g[k](wanted[k], a) for k in g}
        else:
            wanted = g(wanted, a)
        updates, state = jax.jit(tx.update)(GRADS, state, params)
        params = stepax.apply_updates(params, updates)
        for k, x in wanted.items():
            np.testing.assert_allclose(params[k], x, atol=1e-6)
            np.testing.assert_array_equal(params[k] == 0, x == 0)


def test_what_has_no_gradient_stays():
    params = PARAMS | {"f": jnp.sin, "none": None}
    for form in "l1", "rows":
        tx = stepax.proximal(FORMS[form], 0.1)
        updates, _ = tx.update(
            GRADS | {"f": None, "none": None, "b": None}, tx.init(params), params
        )
        assert updates["b"] is None and updates["f"] is None
        assert updates["w"].shape == (2, 2)


@pytest.mark.parametrize("form", ["l1", "all"])
def test_narrow_parameters_become_exactly_sparse(form):
    params = jax.tree.map(lambda p: p.astype("bfloat16"), PARAMS)
    tx = stepax.chain(stepax.sgd(0.1), stepax.proximal(FORMS[form], 0.5))
    updates, _ = tx.update(GRADS, tx.init(params), params)
    found = stepax.apply_updates(params, updates)
    assert found["w"].dtype == "bfloat16"
    assert (found["w"] == 0).any() and (found["w"] != 0).any()


def test_it_is_the_call_that_made_it():
    for g in FORMS.values():
        tx = stepax.proximal(g, 0.1)
        again = pickle.loads(pickle.dumps(tx))
        assert again == tx and hash(again) == hash(tx)
        assert tx != stepax.proximal(prox.l2_squared(0.1), 0.1)
    assert repr(stepax.proximal(prox.l1(0.4), 0.1)) == (
        "proximal(g=l1(0.4), learning_rate=0.1)"
    )
    injected = stepax.inject_hyperparams(stepax.proximal, "g")(prox.l1(1.0), 0.1)
    state = injected.init(PARAMS)
    zero = jax.tree.map(jnp.zeros_like, PARAMS)
    updates, _ = jax.jit(injected.update)(zero, state, PARAMS)
    np.testing.assert_allclose(updates["b"], [-0.1, 0.01], rtol=1e-6)


def test_masked_and_packed():
    tx = stepax.masked(stepax.proximal(prox.l1(10.0), 0.1), {"w": True, "b": False})
    zero = jax.tree.map(jnp.zeros_like, PARAMS)
    updates, _ = tx.update(zero, tx.init(PARAMS), PARAMS)
    np.testing.assert_array_equal(updates["w"], -jnp.clip(PARAMS["w"], -1, 1))
    assert not updates["b"].any()
    packed = stepax.tree.pack(PARAMS)
    tx = stepax.proximal({"w": prox.l1(10.0)}, 0.1)
    updates, _ = tx.update(stepax.tree.pack(zero, like=packed), tx.init(packed), packed)
    found = stepax.tree.unpack(updates)
    np.testing.assert_array_equal(found["w"], -jnp.clip(PARAMS["w"], -1, 1))
    assert not found["b"].any()


def test_wrong_calls_say_what_to_do():
    with pytest.raises(TypeError, match="`g` is a `float`, expected an operator"):
        stepax.proximal(0.1, 0.1)
    tx = stepax.proximal({"nothing": prox.l1(1.0)}, 0.1)
    with pytest.raises(ValueError, match="the pattern `nothing` in `prox` matches no"):
        tx.update(GRADS, tx.init(PARAMS), PARAMS)
    for form in "l1", "rows":
        tx = stepax.proximal(FORMS[form], 0.1)
        with pytest.raises(ValueError, match="params"):
            tx.update(GRADS, tx.init(PARAMS))
