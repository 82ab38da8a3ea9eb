"""Masks, labels and groups of parameters, for trees of any kind, callable or not."""

from collections.abc import Callable
from typing import Any, NamedTuple

import cases
import equinox as eqx
import jax
import jax.numpy as jnp
import library
import numpy as np
import pytest
from brax.training.agents.ppo.losses import PPONetworkParams
from flax import nnx
from flax.core import FrozenDict
from library import make, optax


row = pytest.mark.row
Networks: Any = PPONetworkParams  # a dataclass to a type checker, it is none
KEYWORDS = {"value": jnp.float32(1.0)}


class Net(eqx.Module):
    """A module that must not be called."""

    kernel: Any
    bias: Any
    activation: Callable | None

    def __call__(self, x):
        raise AssertionError("a tree was called")


def net(kernel=None, bias=None):
    kernel = jnp.ones((2, 2)) if kernel is None else kernel
    return Net(kernel, jnp.ones(2) if bias is None else bias, jax.nn.relu)


def arrays(tree):
    return eqx.filter(tree, eqx.is_array)


def numbers(tree):
    """The labels or flags of a model, nothing for its functions."""
    return eqx.tree_at(lambda m: m.activation, tree, None)


# --- what asks for a mask or labels --------------------------------------------------

KERNELS = numbers(net(True, False))
LABELS = numbers(net("kernel", "bias"))
TAKERS = {
    "masked": lambda: optax.masked(optax.scale(-0.5), KERNELS),
    "decay": lambda: optax.add_decayed_weights(0.5, KERNELS),
    "freeze": lambda: optax.freeze(KERNELS),
    "selective_transform": lambda: optax.selective_transform(
        optax.sgd(0.5), freeze_mask=KERNELS
    ),
    "partition": lambda: optax.partition(
        {"kernel": optax.sgd(0.5), "bias": optax.set_to_zero()}, LABELS
    ),
    "multi_transform": lambda: optax.multi_transform(
        {"kernel": optax.sgd(0.5), "bias": optax.set_to_zero()}, LABELS
    ),
    "injected": lambda: optax.inject_hyperparams(optax.adamw)(0.5, mask=KERNELS),
    "muon": lambda: optax.contrib.muon(
        0.5,
        muon_weight_dimension_numbers=Net(
            optax.contrib.MuonDimensionNumbers(), None, None
        ),
    ),
}


@pytest.mark.few(2)
@row("callable pytrees as masks, labels, specs", optax="fails")
@pytest.mark.parametrize("taker", TAKERS)
def test_a_callable_model_as_mask_or_labels_is_never_called(taker):
    model = net()
    tx, p = TAKERS[taker](), arrays(model)
    g = jax.tree.map(jnp.ones_like, p)
    u, _ = tx.update(g, tx.init(p), p, **KEYWORDS)
    assert jax.tree.structure(u) == jax.tree.structure(g)


@pytest.mark.few(1)
@row("callable pytrees as masks, labels, specs", optax="fails")
@pytest.mark.parametrize("row", cases.rows(takes="mask"))
def test_every_mask_may_be_a_callable_model(row):
    p = arrays(net())
    tx = make(row, mask=KERNELS)
    u, _ = tx.update(p, tx.init(p), p, **KEYWORDS)
    assert jax.tree.structure(u) == jax.tree.structure(p)


class Kernels(eqx.nn.Identity):
    """A function of the parameters that is a module without leaves."""

    def __call__(self, x, **kwargs):
        return jax.tree.map(lambda p: p.ndim > 1, x)


def is_kernel(threshold, params):
    return jax.tree.map(lambda p: p.ndim > threshold, params)


@row("callable pytrees as masks, labels, specs", optax="fails")
@pytest.mark.parametrize(
    "mask", [Kernels(), jax.tree_util.Partial(is_kernel, 1)], ids=["module", "Partial"]
)
def test_a_function_that_is_a_tree_is_still_a_function(mask):
    p = {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}
    tx = optax.masked(optax.scale(0.0), mask)
    u, _ = tx.update(p, tx.init(p), p)
    assert not u["kernel"].any() and u["bias"].all()


# --- trees of every kind -------------------------------------------------------------


def dense(n, m):
    return {"kernel": jnp.ones((n, m)), "bias": jnp.ones(m)}


class Layers(nnx.Module):
    def __init__(self, rngs):
        self.policy = nnx.Linear(3, 2, rngs=rngs)
        self.value = nnx.Linear(3, 1, rngs=rngs)


class Pair(NamedTuple):
    policy: Any
    value: Any


NETWORKS = {
    "Brax": lambda: Networks(policy=dense(3, 2), value=dense(3, 1)),
    "NamedTuple": lambda: Pair(dense(3, 2), dense(3, 1)),
    "FrozenDict": lambda: FrozenDict({"policy": dense(3, 2), "value": dense(3, 1)}),
    "nnx State": lambda: nnx.state(Layers(nnx.Rngs(0)), nnx.Param),
    "dict": lambda: {"policy": dense(3, 2), "value": dense(3, 1)},
}


@pytest.mark.slow
@row("labels/masks for NamedTuple, FrozenDict, nnx State", optax="fails")
@pytest.mark.parametrize("wrapper", ["partition", "multi_transform"])
@pytest.mark.parametrize("tree", NETWORKS)
def test_labels_are_a_dict_of_names(tree, wrapper):
    p = NETWORKS[tree]()
    parts = {"learn": optax.sgd(1.0), "keep": optax.set_to_zero()}
    tx = getattr(optax, wrapper)(parts, {"policy": "learn", "value": "keep"})
    u, _ = tx.update(p, tx.init(p), p)
    policy, value = jax.tree.leaves(u)[:2], jax.tree.leaves(u)[2:]
    assert any(x.any() for x in policy) and not any(x.any() for x in value)


@row("labels/masks for NamedTuple, FrozenDict, nnx State", optax="fails")
def test_labels_that_do_not_fit_are_told_both_names():
    p = NETWORKS["Brax"]()
    parts = {"adam": optax.adam(1e-3), "zero": optax.set_to_zero()}
    tx = optax.multi_transform(parts, {"polcy": "adam", "value": "zero"})
    with pytest.raises(ValueError, match=r"(?s)polcy.*policy|policy.*polcy"):
        tx.init(p)


# --- freezing ------------------------------------------------------------------------

FREEZERS = {
    "freeze": lambda tx, mask: optax.chain(tx, optax.freeze(mask)),
    "selective_transform": lambda tx, mask: optax.selective_transform(
        tx, freeze_mask=mask
    ),
    "partition": lambda tx, mask: optax.partition(
        {True: optax.set_to_zero(), False: tx}, mask
    ),
}


@pytest.mark.thinned
@row("freezing and parameter groups", optax="passes")
@pytest.mark.parametrize("freezer", ["selective_transform", "partition"])
@pytest.mark.parametrize("row", library.rows(kind="optimizer"))
def test_what_is_frozen_stays_and_costs_no_memory(row, freezer):
    p = {"kernel": jnp.ones((4, 3)), "bias": jnp.ones(3)}
    tx = FREEZERS[freezer](make(row), {"kernel": True, "bias": False})
    state = tx.init(p)
    u, _ = tx.update(p, state, p, **KEYWORDS)
    np.testing.assert_array_equal(u["kernel"], 0)
    assert not any(jnp.shape(x) == (4, 3) for x in jax.tree.leaves(state))


@row("freezing and parameter groups", optax="fails")
@pytest.mark.parametrize("freezer", FREEZERS)
def test_integers_flags_and_keys_are_frozen_with_gradients_that_carry_nothing(freezer):
    p = {"w": jnp.ones(3), "n": jnp.arange(2), "flag": jnp.array(True)}
    p["key"] = jax.random.key(0)
    nothing = lambda x: np.zeros(x.shape, jax.dtypes.float0)
    g = {k: x if k == "w" else nothing(x) for k, x in p.items()}
    tx = FREEZERS[freezer](optax.adamw(1e-2), {k: k != "w" for k in p})
    u, _ = tx.update(g, tx.init(p), p)
    moved = optax.apply_updates(p, u)
    assert (moved["w"] < 1).all()
    for k in ("n", "flag", "key"):
        assert moved[k].dtype == p[k].dtype and (moved[k] == p[k]).all()


@row("freezing and parameter groups", optax="fails")
@pytest.mark.parametrize("pattern", ["bias", "*/bias", "**/bias", "layer_?/bias"])
def test_groups_are_named_by_path(pattern):
    p = {f"layer_{i}": dense(2, 2) for i in range(3)}
    tx = optax.adamw(1.0, weight_decay=0.5, mask={pattern: False, "**": True})
    g = jax.tree.map(jnp.zeros_like, p)
    u, _ = tx.update(g, tx.init(p), p)
    for layer in u.values():
        assert layer["kernel"].all() and not layer["bias"].any()


# --- masks in masks ------------------------------------------------------------------

NESTS = {
    "lamb in masked": lambda: optax.masked(
        optax.lamb(0.1, mask=lambda p: jax.tree.map(lambda x: True, p)),
        {"kernel": True, "bias": False},
    ),
    "adamw in multi_transform": lambda: optax.multi_transform(
        {
            "a": optax.adamw(0.1, mask=lambda p: jax.tree.map(lambda x: x.ndim > 1, p)),
            "b": optax.sgd(0.1),
        },
        {"kernel": "a", "bias": "b"},
    ),
}


@row("nested masks, masks in wrappers", optax="passes")
@pytest.mark.parametrize("nest", NESTS)
def test_a_masked_optimizer_goes_into_a_mask(nest):
    p = dense(2, 2)
    tx = NESTS[nest]()
    u, _ = tx.update(p, tx.init(p), p)
    assert jax.tree.structure(u) == jax.tree.structure(p)
    assert (u["kernel"] < 0).all()
