"""Every way to say which leaves are meant means the same, for whoever asks."""

import functools as ft
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from brax.training.agents.ppo.losses import PPONetworkParams
from flax import nnx
from flax.core import FrozenDict
from inside import is_none, selection

import stepax


Networks: Any = PPONetworkParams  # a dataclass to a type checker, it is none


def dense(n, m):
    """Parameters of a layer; matrices are labelled "a" here, vectors "b"."""
    return {"kernel": jnp.full((n, m), 0.5), "bias": jnp.full(m, 0.25)}


class Net(eqx.Module):
    """A module that must not be called."""

    layer: eqx.nn.Linear
    activation: Callable
    scale: jax.Array

    def __call__(self, x):
        raise AssertionError("a tree was called")


class Block(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(3, 2, rngs=rngs)
        self.scale = nnx.Param(jnp.ones(2))


class Pair(NamedTuple):
    first: Any
    second: Any


@jax.tree_util.register_dataclass
@dataclass
class Record:
    weights: Any
    bias: Any


TREES = {
    "Brax": lambda: Networks(
        policy={"params": {"hidden_0": dense(3, 2), "hidden_1": dense(2, 2)}},
        value={"params": {"hidden_0": dense(3, 1)}},
    ),
    "module": lambda: Net(
        eqx.nn.Linear(3, 2, key=jax.random.key(0)), jax.nn.relu, jnp.ones(2)
    ),
    "FrozenDict": lambda: FrozenDict(
        {"deep": {"layer": dense(2, 2)}, "top": dense(2, 1)}
    ),
    "nnx State": lambda: nnx.state(Block(nnx.Rngs(0)), nnx.Param),
    "dataclass": lambda: Record({"x": jnp.ones((2, 2))}, jnp.ones(2)),
    "tuple": lambda: (
        jnp.ones((2, 2)),
        [jnp.ones(2), None],
        Pair(None, jnp.ones((1, 2))),
    ),
    "haiku": lambda: {"mlp/~/linear_0": dense(2, 2), "mlp/~/linear_1": dense(2, 1)},
    "integer keys": lambda: {0: dense(2, 2), 10: jnp.ones(2)},
    "odd names": lambda: {"w[0]": jnp.ones((2, 2)), "*": jnp.ones(2), "": jnp.ones(1)},
    "one array": lambda: jnp.ones((2, 2)),
    "only None": lambda: {"a": None, "b": (None,)},
    "empty": lambda: {"a": {}, "b": ()},
}


def expected(tree):
    """What each leaf should be labelled; `None` for what is no array."""
    leaves = jax.tree.leaves(tree, is_leaf=is_none)
    return [("ba"[x.ndim > 1] if eqx.is_array(x) else None) for x in leaves]


def same_type(tree):
    treedef = jax.tree.structure(tree, is_leaf=is_none)
    return treedef.unflatten(expected(tree))


def named(tree):
    """The path of each leaf that is an array, and its label."""
    found, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_none)
    names = [tuple(map(selection.key_name, path)) for path, _ in found]
    pairs = zip(names, expected(tree), strict=True)
    return [(path, label) for path, label in pairs if label is not None]


def nested(tree):
    out = {}
    for (*path, last), label in named(tree):
        ft.reduce(lambda d, k: d.setdefault(k, {}), path, out)[last] = label
    return out


class Chooser(eqx.nn.Identity):
    """A function of the parameters that is a module without leaves."""

    def __call__(self, x, **kwargs):
        return same_type(x)


def by_method(tree):
    """A function with a constant bound to it."""
    return ft.partial(lambda constant, params: same_type(params), 1.0)


FORMS = {
    "same type": same_type,
    "function": lambda tree: same_type,
    "functools.partial": by_method,
    "Partial": lambda tree: jax.tree_util.Partial(lambda c, p: same_type(p), 1.0),
    "leafless module": lambda tree: Chooser(),
    "function of patterns": lambda tree: lambda params: paths(params),
    "paths": lambda tree: paths(tree),
    "nested names": lambda tree: nested(tree),
    # A name alone would match at any depth; with a "/" it begins at the root.
    "all but": lambda tree: (
        {p if "/" in p else f"{p}/**": x for p, x in paths(tree, "a").items()}
        | ({"**": "b"} if paths(tree, "b") else {})
    ),
}


def paths(tree, only=None):
    pairs = named(tree)
    return {"/".join(p): label for p, label in pairs if only in (None, label)}


def has_form(tree, form):
    return tree != "one array" or "names" not in form


PRODUCT = [(t, f) for t in TREES for f in FORMS if has_form(t, f)]


@pytest.mark.few(18)
@pytest.mark.parametrize("tree, form", PRODUCT)
def test_every_form_gives_the_same_labels(tree, form):
    tree = TREES[tree]()
    found = selection.resolve(FORMS[form](tree), tree)
    pairs = zip(found, expected(tree), strict=len(found) > 0)
    assert all(x == y for x, y in pairs if y is not None)


LABELS = {
    "inner names": ("Brax", {"kernel": "a", "bias": "b"}),
    "field and inner names": (
        "Brax",
        {"policy": {"bias": "b", "kernel": "a"}, "value/**/bias": "b", "**": "a"},
    ),
    "same type around names": (
        "Brax",
        Networks(policy={"kernel": "a", "**": "b"}, value={"*/*/bias": "b", "**": "a"}),
    ),
    "prefix and names": (
        "Brax",
        {
            "policy/params": {"hidden_?": {"kernel": "a", "bias": "b"}},
            "value": {"params": {"hidden_0": {"kernel": "a", "**": "b"}}},
        },
    ),
    "dict by field": ("module", {"layer": {"weight": "a", "bias": "b"}, "scale": "b"}),
    "dict for FrozenDict": ("FrozenDict", {"kernel": "a", "bias": "b"}),
    "prefix by names": (
        "FrozenDict",
        {
            "deep": {"layer": {"kernel": "a", "*": "b"}},
            "top": {"kernel": "a", "bias": "b"},
        },
    ),
    "nnx by names": (
        "nnx State",
        {"linear": {"kernel": "a", "bias": "b"}, "scale": "b"},
    ),
    "fields of a dataclass": ("dataclass", {"weights": "a", "bias": "b"}),
    "prefix of a dataclass": ("dataclass", Record("a", "b")),
    "indices": ("tuple", {"0/**": "a", "1/0": "b", "second": "a"}),
    "integer indices": ("tuple", {0: "a", 1: "b", 2: "a"}),
    "prefix of a tuple": ("tuple", ("a", "b", "a")),
    "sequence inside names": ("tuple", {0: "a", 1: ["b", None], 2: Pair(None, "a")}),
    "names with slashes": (
        "haiku",
        {
            "mlp/~/linear_0": {"kernel": "a", "bias": "b"},
            "mlp/**/kernel": "a",
            "**": "b",
        },
    ),
    "part of a name with slashes": (
        "haiku",
        {"linear_0": {"kernel": "a", "bias": "b"}, "**/linear_1/bias": "b", "**": "a"},
    ),
    "integer keys": ("integer keys", {0: {"kernel": "a", "bias": "b"}, 10: "b"}),
    "integers as text": ("integer keys", {"0/kernel": "a", "0": "b", "1*": "b"}),
}


@pytest.mark.parametrize("case", LABELS)
def test_names_and_prefixes_mean_what_they_say(case):
    tree, spec = LABELS[case]
    tree = TREES[tree]()
    found = selection.resolve(spec, tree)
    pairs = zip(found, expected(tree), strict=True)
    assert all(x == y for x, y in pairs if y is not None)


class Report(NamedTuple):
    """The parameters of the report: what it labels are modules inside of fields."""

    encoder: Any
    policy: Any


def test_labels_by_module_names_on_a_named_tuple():
    layers = {"Encoder_0": dense(3, 2), "BCModel_0": {"Dense_0": dense(2, 2)}}
    params = Report({"params": layers}, {"params": {"ResidualPolicy_0": dense(2, 2)}})
    labels = {"Encoder_0": "zero", "BCModel_0": "zero", "ResidualPolicy_0": "adam"}
    found = selection.resolve(labels, params)
    assert found == ["zero"] * 4 + ["adam"] * 2
    txs = {"zero": stepax.set_to_zero(), "adam": stepax.adam(1e-2)}
    state = stepax.multi_transform(txs, labels).init(params)
    assert len(jax.tree.leaves(state)) == 1 + 2 * 2  # count, mu and nu of one layer


# --- whoever takes a mask or labels takes all forms ---------------------------------


def booleans(spec):
    """A specification of labels as one of a mask: whether the label is "a"."""
    if selection.is_function(spec):
        return lambda params: booleans(spec(params))
    to = {"a": True, "b": False, None: None}
    if isinstance(spec, dict):
        return {k: booleans(x) for k, x in spec.items()}
    return jax.tree.map(to.get, spec, is_leaf=is_none)


# From a library and a specification of labels to a transformation.  Where the library
# is Optax, the specification is the tree of labels itself.
CONSUMERS = {
    "partition": lambda o, s: o.partition(
        {"a": o.scale_by_adam(), "b": o.scale(2.0)}, s
    ),
    "multi_transform": lambda o, s: o.multi_transform(
        {"a": o.set_to_zero(), "b": o.scale_by_adam()}, s
    ),
    "masked": lambda o, s: o.masked(o.scale_by_adam(), booleans(s)),
    "freeze": lambda o, s: o.freeze(booleans(s)),
    "selective_transform": lambda o, s: o.selective_transform(
        o.scale_by_adam(), freeze_mask=booleans(s)
    ),
    "add_decayed_weights": lambda o, s: o.add_decayed_weights(0.5, booleans(s)),
    "adamw": lambda o, s: o.adamw(0.1, weight_decay=0.5, mask=booleans(s)),
}
ASKED = ["Brax", "module", "FrozenDict", "tuple", "haiku", "empty"]


def gradients(params):
    return jax.tree.map(lambda p: p + 1 if eqx.is_array(p) else None, params)


def step(tx, params):
    g, state = gradients(params), tx.init(params)
    return [state, *jax.jit(tx.update)(g, state, eqx.filter(params, eqx.is_array))]


def assert_same(found, wanted, **tolerance):
    assert str(jax.tree.structure(found)) == str(jax.tree.structure(wanted))
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(x, y, **(tolerance or {"rtol": 0}))


@pytest.mark.few(1)
@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("tree", ASKED)
def test_every_form_works_for_whoever_takes_it(tree, consumer):
    params, make = TREES[tree](), CONSUMERS[consumer]
    wanted = step(make(stepax, lambda p: same_type(p)), params)
    for form in FORMS.values():
        assert_same(step(make(stepax, form(params)), params), wanted)


@pytest.mark.few(2)
@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("tree", [*TREES])
def test_values_and_states_are_those_of_optax(tree, consumer):
    params, make = eqx.filter(TREES[tree](), eqx.is_array), CONSUMERS[consumer]
    spec = same_type
    if consumer == "selective_transform":
        spec = same_type(params)  # Optax takes a function for a true mask
        if callable(spec):
            pytest.skip("Optax calls a mask that is a callable module")
    with jax.numpy_dtype_promotion("standard"):
        wanted = step(make(optax, spec), params)
    # One step of Adam may be contracted differently in two programs.
    assert_same(step(make(stepax, same_type(params)), params), wanted, rtol=1e-6)


# --- which callables are functions ---------------------------------------------------


@pytest.mark.parametrize(
    "spec, is_function",
    [
        (len, True),
        (lambda p: p, True),
        (ft.partial(len), True),
        (jax.tree_util.Partial(len, 1.0), True),
        (Chooser(), True),
        (TREES["module"](), False),
        (eqx.nn.MLP(1, 1, 1, 1, key=jax.random.key(0)), False),
        ({"w": len}, False),
        (None, False),
        ("label", False),
        (True, False),
    ],
)
def test_a_callable_is_a_function_unless_it_is_a_tree_with_leaves(spec, is_function):
    assert selection.is_function(spec) is is_function


def test_a_module_of_nothing_but_none_is_a_tree():
    model = TREES["module"]()
    nothing = jax.tree.map(lambda _: None, model)
    with pytest.raises(TypeError, match=r"`mask` for \.layer\.weight is `None`"):
        selection.resolve_mask(nothing, model)


def test_a_partial_may_be_the_parameters():
    params = jax.tree_util.Partial(lambda w, x: w * x, jnp.ones(2))
    labels = jax.tree.map(lambda _: "a", params)
    assert selection.resolve(labels, params) == ["a"]


def test_a_function_that_is_a_tree_with_leaves_is_told_how_to_be_one():
    class Rule(eqx.Module):
        threshold: float

        def __call__(self, params):
            return True

    with pytest.raises(
        TypeError, match=r"`Rule`, which is callable.*lambda params: mask"
    ):
        selection.resolve_mask(Rule(1.0), {"w": jnp.ones(2)})


@pytest.mark.parametrize("frozen", [True, False])
def test_one_value_masks_also_what_an_outer_mask_leaves_empty(frozen):
    def state_of(o):
        inner = o.selective_transform(o.trace(0.9), freeze_mask=frozen)
        return o.masked(inner, {"w": False}).init({"w": {"w": jnp.ones(3)}})

    assert str(state_of(stepax)) == str(state_of(optax))
