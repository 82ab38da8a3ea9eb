"""Values of a state found, replaced and mapped over by name and by place."""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.core import FrozenDict
from jax.sharding import PartitionSpec
from jax.tree_util import DictKey, GetAttrKey, SequenceKey

import stepax
from stepax.tree import get, get_all_with_path, map_params, set
from stepax.tree_utils import NamedTupleKey


class P(NamedTuple):
    x: Any
    y: Any


class Q(NamedTuple):
    x: Any
    z: Any


class Module(eqx.Module):
    weight: Any
    static: Any = eqx.field(static=True, default=0)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Record:
    x: Any
    w: Any


@jax.tree_util.register_pytree_node_class
class Keyless:
    def __init__(self, inside):
        self.inside = inside

    def tree_flatten(self):
        return (self.inside,), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)

    def __eq__(self, other):
        return isinstance(other, Keyless) and self.inside == other.inside


def only_q(path, value):
    return path[-1].tuple_name == "Q"


# What Optax finds as well: a tree, a name, and a filter.
FOUND = [
    (P(1, 2), "x", None),
    (P(1, 2), "P", None),
    (P(P(1, 3), 2), "P", None),
    (P(None, 2), "x", None),
    ((P(1, 2), P(3, 4)), "x", None),
    ((P(1, 2), Q(3, 4)), "x", only_q),
    ((P(1, 2), Q({"x": 3}, 4)), "x", lambda path, value: isinstance(value, int)),
    ((P(1, 2), Q(3, 4)), "x", lambda path, value: False),
    (P({"x": 7}, 2), "x", None),
    ({"q": P(1, {"x": 2})}, "x", None),
    ({"a": {"a": 1, "b": [2]}}, "a", None),
    ({0: 5, 1: None}, 0, None),
    ([1, 2], 0, None),
    ({}, "a", None),
    (3, "a", None),
    (None, "a", None),
    ([(), P((), ())], "y", None),
    (FrozenDict({"a": {"b": 1}}), "b", None),
    (Keyless({"k": P(1, 2)}), "k", None),
    (Keyless(P(1, 2)), "P", None),
    (Module(P(1, 2)), "y", None),
    (Module(P(1, 2)), "static", None),
    ({"x": 3, "a": {"b": {"x": 1}}, "c": {"x": 2}}, "x", None),
    ({"a": {"x": {"x": 1}}, "b": {"x": 2}}, "x", None),
    ([P(P({"x": {"x": 3}}, 2), 1), {"x": 2, "c": P(5, 6)}], "x", None),
    ([P(P(1, 2), 3), P(4, Q(P(5, 6), 7))], "P", None),
]


@pytest.mark.parametrize("tree, key, filtering", FOUND)
def test_finds_what_optax_finds(tree, key, filtering):
    theirs = optax.tree.get_all_with_path(tree, key, filtering)
    ours = get_all_with_path(tree, key, filtering)
    assert [(repr(path), x) for path, x in ours] == [(repr(p), x) for p, x in theirs]
    if len(ours) < 2:
        assert get(tree, key, "none", filtering) == (ours[0][1] if ours else "none")
    else:
        with pytest.raises(KeyError):
            get(tree, key, "none", filtering)


def random_tree(random, depth):
    """Dicts, lists and named tuples with few names, which so repeat."""
    kind = random.integers(7 if depth else 2)
    inside = [random_tree(random, depth - 1) for _ in range(2 if kind > 1 else 0)]
    if kind < 2:
        return None if kind else int(random.integers(9))
    if kind == 6:
        return inside
    names = sorted(random.permutation(["x", "y", "P", "w"])[:2].tolist())
    return P(*inside) if kind < 4 else dict(zip(names, inside, strict=True))


@pytest.mark.few(36)
@pytest.mark.parametrize("seed", range(40))
def test_finds_what_optax_finds_in_any_tree_and_sets_it_all(seed):
    tree = random_tree(np.random.default_rng(seed), depth=5)
    for key in "x", "P":
        # Where a dict has `P` for a `P`, Optax lists that twice.
        theirs = {repr(p): x for p, x in optax.tree.get_all_with_path(tree, key)}
        ours = [(repr(path), x) for path, x in get_all_with_path(tree, key)]
        assert ours == list(theirs.items())
        new = tree
        for path, x in get_all_with_path(tree, key):
            only = lambda p, _, path=path: p == path
            new = set(new, only, **{key: jax.tree.map(lambda _: 9, x)})
        found = jax.tree.leaves([x for _, x in get_all_with_path(new, key)])
        assert {*found} <= {9}


NETWORK = {"encoder": {"k": jnp.ones((2, 2)), "b": jnp.ones(2)}, "head": jnp.ones(2)}
LABELLED = {"head": "x", "**": "y"}

# Ways to the state of one Adam.
HOLDERS = {
    "alone": lambda: stepax.scale_by_adam(),
    "chain": lambda: stepax.chain(stepax.clip(1.0), stepax.adamw(1e-3)),
    "named_chain": lambda: stepax.named_chain(("opt", stepax.adam(1e-3))),
    "injected": lambda: stepax.inject_hyperparams(stepax.adam)(1e-3),
    "MultiSteps": lambda: stepax.MultiSteps(stepax.adam(1e-3), 2),
    "masked": lambda: stepax.masked(stepax.adam(1e-3), {"head": False, "**": True}),
    "partition": lambda: stepax.partition(
        {"x": stepax.adam(1e-3), "y": stepax.adam(1e-3)}, LABELLED
    ),
    "observe": lambda: stepax.observe(stepax.adam(1e-3), {}),
    "Optax": lambda: optax.MultiSteps(optax.adamw(1e-3), 2),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", HOLDERS)
def test_values_are_found_and_set_by_path(name):
    state = HOLDERS[name]().init(NETWORK)
    assert get(state, "mu/encoder/k").shape == (2, 2)
    twos = jnp.full((2, 2), 2)  # integers become floating-point numbers
    new = jax.jit(lambda s: set(s, **{"mu/encoder/k": twos}))(state)
    assert get(new, "mu/encoder/k").sum() == 8 and not get(new, "nu/encoder/k").any()
    assert jax.tree.structure(new) == jax.tree.structure(state)
    typed = lambda tree: [jax.typeof(x) for x in jax.tree.leaves(tree)]
    assert typed(new) == typed(state)


def test_patterns_find_and_set_several():
    state = stepax.chain(stepax.clip(1.0), stepax.adam(1e-3)).init(NETWORK)
    both = get_all_with_path(state, "[mn]u/encoder/*")
    assert [x.shape for _, x in both] == 2 * [(2,), (2, 2)]
    assert len(get_all_with_path(state, "mu/**")) == 1
    assert get(state, "1/0/count") == 0
    new = set(state, **{"mu/**/b": jnp.full(2, 3.0), "**/head": jnp.full(2, 4.0)})
    assert get(new, "mu/encoder/b")[0] == 3 and get(new, "nu/head")[0] == 4
    only_nu = lambda path, x: any(getattr(k, "name", "") == "nu" for k in path)
    assert get(new, "encoder/b", filtering=only_nu)[0] == 0


def test_a_path_that_leads_nowhere_or_everywhere():
    state = stepax.adam(1e-3).init(NETWORK)
    with pytest.raises(KeyError, match="`mu/encoder/bb`.* `mu/encoder/b`"):
        get(state, "mu/encoder/bb")
    with pytest.raises(KeyError, match="no value is at the path `encoder/q`"):
        set(state, **{"encoder/q": 1.0})
    assert get(state, "mu/encoder/bb", default=7) == 7
    assert get(state, "nothing/of/this") is None  # as in Optax
    with pytest.raises(KeyError, match="2 values, `0/mu/head`, `0/nu/head`"):
        get(state, "*u/head")
    with pytest.raises(KeyError, match="2 values, .*begin with more names"):
        set(state, **{"encoder/k": jnp.ones((2, 2))})


UNFIT = [
    ("mu/encoder/k", 1.0, ValueError, r"`0/mu/encoder/k` has shape \(2, 2\)"),
    ("mu/encoder/k", jnp.ones(2), ValueError, r"an array of shape \(2,\)"),
    ("mu/encoder/k", "text", ValueError, "new value is `'text'`"),
    ("mu/encoder/k", 1j * jnp.ones((2, 2)), TypeError, "float32, .* complex64"),
    ("0/count", 2.5, TypeError, "dtype int32, to which .* float32"),
    ("0/count", True, TypeError, "dtype int32, to which .* bool"),
    ("mu/encoder", {"k": 1}, ValueError, "`0/mu/encoder`.* the structure"),
]


@pytest.mark.parametrize("key, value, kind, message", UNFIT)
def test_a_path_takes_nothing_that_does_not_fit(key, value, kind, message):
    with pytest.raises(kind, match=message):
        set(stepax.adam(1e-3).init(NETWORK), **{key: value})


def test_keys_with_slashes_are_names_first():
    tree = {"linear/w": {"x": 1}, "linear": {"w": 2}}
    assert get(tree, "linear/w") == {"x": 1} and get(tree, "linear/w/x") == 1
    new = set(tree, **{"linear/w": {"x": 3}})
    assert new == {"linear/w": {"x": 3}, "linear": {"w": 2}}


def test_values_deep_inside_one_that_has_the_name_are_set_too():
    tree = P(1, [P(2, 3)])  # Optax finds both, and sets the outer one
    assert set(tree, x=9) == P(9, [P(9, 3)])


SET = [
    (P(1, 2), None, {"x": 9}),
    (P(1, 2), None, {"x": 9, "y": 8}),
    (P(1, 2), None, {"P": P(7, 8)}),
    ((P(1, 2), Q(3, 4)), None, {"x": 9}),
    ((P(1, 2), Q(3, 4)), only_q, {"x": 9}),
    ((P(1, 2), Q(3, 4)), None, {"x": 9, "z": 8}),
    (P({"x": 1}, 2), None, {"x": {"x": 5}}),
    (P(None, 2), None, {"x": None}),
    ({"a": [1, 2]}, None, {"a": None}),
    ({"a": {"a": 1, "b": 2}}, None, {"b": 5, "a": 3}),
    (P(P(1, 2), P(3, 4)), None, {"x": P(5, 6), "y": P(7, 8)}),
    (Keyless({"k": 1}), None, {"k": 2}),
    (FrozenDict({"a": {"b": 1}}), None, {"b": 2}),
]


@pytest.mark.parametrize("tree, filtering, values", SET)
def test_sets_what_optax_sets(tree, filtering, values):
    found = set(tree, filtering, **values)
    assert found == optax.tree.set(tree, filtering, **values)
    assert type(found) is type(optax.tree.set(tree, filtering, **values))


def test_several_values_of_one_name_are_listed():
    with pytest.raises(KeyError, match=r"`x` names 3 values.*`\[0\].x of P`, `\[1\].x"):
        get([P({"x": 1}, 2), Q(3, 4)], "x")


def test_a_missing_name_is_answered_with_similar_ones():
    state = {"learning_rate": 1.0, "weight_decay": 0.1, "moment": P(1, 2)}
    with pytest.raises(KeyError, match="`learning_rates`; .* `learning_rate`"):
        set(state, learning_rates=2.0)
    with pytest.raises(KeyError, match="`x`; the tree has no names"):
        set([1, 2], x=2.0)


def test_a_filter_that_leaves_nothing_is_named():
    with pytest.raises(
        KeyError, match=r"`filtering` leaves out every `x`, at `.x of P`"
    ):
        set(P(1, 2), lambda path, value: False, x=2)


def test_a_dict_entry_named_as_its_class_is_one_value():
    assert get({"P": P(1, 2)}, "P") == P(1, 2)  # Optax counts it twice


@pytest.mark.parametrize("tree", [Record(1, 2), [Record(3, Record(1, 2).w), 2]])
def test_fields_of_dataclasses_are_names(tree):
    assert get(tree, "w") == 2
    assert get(set(tree, w=7), "w") == 7
    assert get(set(tree, Record=7), "Record") is None


def test_fields_of_modules_are_names_in_a_path():
    tree = {"m": Module(Record([P(1, 2)], 5), static=3)}
    ((path, value),) = get_all_with_path(tree, "w")
    assert path == (DictKey("m"), GetAttrKey("weight"), GetAttrKey("w"))
    ((path, value),) = get_all_with_path(tree, "y")
    assert path[2:] == (GetAttrKey("x"), SequenceKey(0), NamedTupleKey("P", "y"))
    new = set(tree, w=6)
    assert new["m"].static == 3 and new["m"].weight.w == 6
    assert tree["m"].weight.w == 5


def test_named_tuples_and_dicts_come_before_other_nodes():
    # A program that finds one `x` with Optax must find it whatever modules there are.
    tree = [Record(1, 2), P(3, Record(4, 5)), {"w": 6}]
    assert get(tree, "x") == 3
    assert get(tree, "w") == 6
    assert set(tree, x=0) == [Record(1, 2), P(0, Record(4, 5)), {"w": 6}]


def test_what_is_not_replaced_is_not_rebuilt():
    kept = Record(1, 2)
    assert set([kept, {"a": 1}], a=2)[0] is kept


def test_a_key_prints_its_tuple_and_compares_by_value():
    key = NamedTupleKey("P", "x")
    assert str(key) == "P.x"
    assert key == NamedTupleKey("P", "x")
    assert len({key, NamedTupleKey("P", "x")}) == 1


PARAMS = {"a": jnp.arange(3.0), "b": {"c": jnp.ones((2, 2)), "n": None}}
LABELS = {"a": "x", "b": {"c": "y", "n": "y"}}
MASK = {"a": True, "b": {"c": False, "n": None}}


def adam(module):
    return module.chain(module.scale_by_adam(), module.scale(-0.1))


TRANSFORMATIONS = {
    "chain": adam,
    "injected": lambda m: m.inject_hyperparams(m.scale_by_adam)(b1=0.9),
    "accumulated": lambda m: m.MultiSteps(adam(m), 2),
    "masked": lambda m: m.masked(adam(m), MASK),
    "mask function": lambda m: m.masked(adam(m), lambda params: MASK),
    "partition": lambda m: m.multi_transform({"x": adam(m), "y": adam(m)}, LABELS),
}


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_finds_and_sets_in_the_state_of(name):
    state = TRANSFORMATIONS[name](stepax).init(PARAMS)
    for key in "mu", "nu":
        found = get_all_with_path(state, key)
        assert [x for path, x in found] and all(len(path) for path, x in found)
        sevens = lambda path, x: jax.tree.map(lambda y: jnp.full_like(y, 7), x)
        for path, x in found:
            only = lambda p, _, path=path: p == path
            state = set(state, only, **{key: sevens(path, x)})
        new = jax.tree.leaves([x for _, x in get_all_with_path(state, key)])
        assert all((x == 7).all() for x in new)
    counts = get_all_with_path(set(state, count=jnp.int32(9)), "count")
    assert {int(x) for _, x in counts} == {9}


def test_hyperparameters_are_set_by_name():
    tx = TRANSFORMATIONS["injected"](stepax)
    state = set(tx.init(PARAMS), b1=jnp.float32(0.5))
    assert get(state, "hyperparams")["b1"] == get(state, "b1") == 0.5


# Optax's own masks know only Optax's own placeholder.
OURS_AND_THEIRS = [(stepax, name) for name in TRANSFORMATIONS]
OURS_AND_THEIRS += [(optax, name) for name in ("chain", "injected", "accumulated")]


@pytest.mark.parametrize("module, name", OURS_AND_THEIRS)
def test_map_params_is_optax_s(module, name):
    specs = {"a": PartitionSpec("d"), "b": {"c": PartitionSpec(), "n": None}}
    tx, theirs = TRANSFORMATIONS[name](module), TRANSFORMATIONS[name](optax)
    is_hole = {"is_leaf": lambda x: isinstance(x, optax.MaskedNode)}

    def mapped(map_params, tx, f, *rest, **more):
        state = tx.init(PARAMS)
        new = map_params(tx, f, state, *rest, transform_non_params=jnp.shape, **more)
        return jax.tree.leaves(new)

    plain = mapped(map_params, tx, lambda p: "p")
    assert plain == mapped(optax.tree.map_params, theirs, lambda p: "p")
    if "mask" not in name and name != "partition":  # there Optax needs `is_leaf`
        expected = mapped(optax.tree.map_params, theirs, lambda p, s: s, specs)
        assert mapped(map_params, tx, lambda p, s: s, specs) == expected
        expected = mapped(optax.tree.map_params, theirs, lambda p: p, **is_hole)
        found = mapped(map_params, tx, lambda p: p, **is_hole)
        jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_map_params_keeps_masked_parameters_masked():
    tx = stepax.masked(stepax.scale_by_adam(), MASK)
    names = {"a": "x", "b": {"c": "y", "n": None}}
    mu = get(map_params(tx, lambda p, s: s, tx.init(PARAMS), names), "mu")
    assert mu["a"] == "x"
    assert mu["b"]["c"] == stepax.MaskedNode()


def test_map_params_shows_masked_parameters_on_request():
    tx = stepax.masked(
        stepax.scale_by_adam(), {"a": True, "b": {"c": False, "n": True}}
    )
    state = map_params(
        tx,
        lambda p: "hole" if isinstance(p, stepax.MaskedNode) else "p",
        tx.init(PARAMS),
        is_leaf=lambda x: isinstance(x, stepax.MaskedNode),
    )
    assert get(state, "mu")["b"]["c"] == "hole"


def test_map_params_takes_an_init_function_and_leaves_the_rest():
    tx = stepax.scale_by_adam()
    state = tx.init(PARAMS)
    new = map_params(tx.init, lambda p: p + 1, state)
    assert new.count is state.count
    jax.tree.map(np.testing.assert_array_equal, new.mu["a"], jnp.ones(3))


def test_map_params_refuses_another_state():
    state = stepax.scale_by_adam().init(PARAMS)
    with pytest.raises(ValueError, match="`state` differs from what `initable` makes"):
        map_params(adam(stepax), lambda p: p, state)
    with pytest.raises(TypeError, match="`initable` is a `int`, expected a gradient"):
        map_params(3, lambda p: p, state)
