"""The five reports that Stepax began with, each with the library it came from."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from brax.training.agents.ppo.losses import PPONetworkParams
from library import optax


row = pytest.mark.row
Networks: Any = PPONetworkParams  # a dataclass to a type checker, it is none


def dense(n, m):
    return {"kernel": jnp.ones((n, m)), "bias": jnp.ones(m)}


@pytest.mark.slow
@row(
    "labels for a NamedTuple: multi_transform on Brax's PPONetworkParams", optax="fails"
)
def test_labels_are_names_of_modules_inside_the_networks():
    p = Networks(
        policy={"params": {"Encoder_0": dense(3, 2), "ResidualPolicy_0": dense(2, 1)}},
        value={"params": {"BCModel_0": dense(3, 1)}},
    )
    labels = {"Encoder_0": "zero", "BCModel_0": "zero", "ResidualPolicy_0": "adam"}
    tx = optax.multi_transform(
        {"adam": optax.adam(1e-3), "zero": optax.set_to_zero()}, labels
    )
    u, _ = tx.update(p, tx.init(p), p)
    moved = {k: x["kernel"].any() for k, x in u.policy["params"].items()}
    assert moved["ResidualPolicy_0"] and not moved["Encoder_0"]
    assert not u.value["params"]["BCModel_0"]["kernel"].any()


def model():
    return eqx.nn.MLP(2, 2, 4, 1, key=jax.random.key(0))


def arrays(tree):
    return eqx.filter(tree, eqx.is_inexact_array)


def is_matrix(tree):
    return jax.tree.map(lambda x: x.ndim > 1 if eqx.is_array(x) else x, tree)


INJECTED = "injected hyperparameters: inject_hyperparams + callable pytree + mask"
MASKS = {"tree": is_matrix(arrays(model())), "function": is_matrix}


@pytest.mark.slow
@row(INJECTED, optax="fails")
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_injected_decay_of_a_callable_model_is_that_of_the_mask(mask):
    p = arrays(model())
    nothing = jax.tree.map(jnp.zeros_like, p)
    tx = optax.inject_hyperparams(optax.adamw)(1.0, weight_decay=0.5, mask=mask)
    u, _ = tx.update(nothing, tx.init(p), p)
    for x, y in zip(jax.tree.leaves(u), jax.tree.leaves(p), strict=True):
        np.testing.assert_allclose(x, -0.5 * y if y.ndim > 1 else 0 * y, rtol=1e-6)


@row(INJECTED, optax="fails")
def test_an_injected_optimizer_takes_a_dtype():
    p = arrays(model())
    tx = optax.inject_hyperparams(optax.adamw)(1e-3, mu_dtype=jnp.bfloat16)
    state = tx.init(p)
    mu = optax.tree.get(state, "mu")
    assert {x.dtype for x in jax.tree.leaves(mu)} == {jnp.dtype("bfloat16")}
    assert "mu_dtype" not in state.hyperparams


@pytest.mark.few(1)
@row("accumulation and NaN: zero_nans inside MultiSteps", optax="fails")
@pytest.mark.parametrize("jit", [False, True])
def test_one_bad_batch_does_not_stop_a_coordinate_for_ever(jit):
    inner = optax.chain(optax.zero_nans(), optax.adam(0.1))
    tx = optax.MultiSteps(inner, every_k_schedule=2)
    p, g = {"w": jnp.ones(2)}, {"w": jnp.ones(2)}
    step = jax.jit(tx.update) if jit else tx.update
    state, moved = tx.init(p), []
    for bad in (True, False, False, False, False, False):
        g_now = {"w": g["w"].at[0].set(jnp.nan)} if bad else g
        u, state = step(g_now, state, p)
        moved.append(np.asarray(u["w"]))
    assert np.isfinite(moved).all()
    assert not np.any(moved[::2]) and np.all(moved[3::2])


@pytest.mark.few(1)
@row("callable masks: masked with callable pytrees", optax="fails")
@pytest.mark.parametrize("wrapper", ["masked", "multi_transform", "partition"])
def test_a_callable_model_says_which_of_its_leaves_learn(wrapper):
    p = arrays(model())
    if wrapper == "masked":
        tx = optax.masked(optax.adam(1e-2), is_matrix(p))
    else:
        labels = jax.tree.map(lambda on: "adam" if on else "keep", is_matrix(p))
        parts = {"adam": optax.adam(1e-2), "keep": optax.identity()}
        tx = getattr(optax, wrapper)(parts, labels)
    u, _ = tx.update(p, tx.init(p), p)
    for x, y in zip(jax.tree.leaves(u), jax.tree.leaves(p), strict=True):
        assert (x == y).all() == (y.ndim == 1)


@pytest.mark.slow
@row("L-BFGS on modules: L-BFGS on Equinox / neural ODE", optax="fails")
def test_a_whole_model_is_handed_to_lbfgs():
    x = jax.random.normal(jax.random.key(1), (16, 2))
    loss = lambda m: jnp.mean((jax.vmap(m)(x) - x[:, ::-1]) ** 2)
    m, tx = model(), optax.lbfgs()
    state, values = tx.init(m), []
    for _ in range(4):
        value, g = eqx.filter_value_and_grad(loss)(m)
        u, state = tx.update(g, state, m, value=value, grad=g, value_fn=loss)
        m = eqx.apply_updates(m, u)
        values.append(float(value))
    assert values[-1] < 0.7 * values[0]
