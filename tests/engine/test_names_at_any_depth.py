"""A single name among patterns means that name at any depth, whoever takes it."""

import inspect
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from cases import make
from compare import assert_same_tree
from flax import nnx
from flax.core import FrozenDict
from inside import BY_PATH, ROWS, selection
from keywords import keywords
from mask_forms import matrix, options_beside, specs_of, valued
from test_mask_forms import of_examples

import stepax


def twice() -> Any:
    """A name at the root and below."""
    block = {"scale": matrix(), "kernel": matrix()}
    return {"scale": matrix(), "blocks": [block, {"scale": matrix()}]}


# For each mapping the tree that it means: "b" for `scale`, at the root, below, or both.
MEANINGS = {
    "any depth": ({"scale": "b", "**": "a"}, "bbb"),
    "any depth, without a star": ({"scale": "b", "kernel": "a"}, "bbb"),
    "the field alone": ({"scale/**": "b", "**": "a"}, "baa"),
    "a tree": ({"scale": "b", "blocks": "a"}, "baa"),
    "nested": ({"blocks": {"scale": "b", "**": "a"}, "scale": "a"}, "abb"),
    "nested, once": ({"blocks": {"0/scale": "b", "**": "a"}, "scale": "a"}, "aba"),
    "nested, without a star": ({"blocks": {"scale": "b"}, "**": "a"}, "abb"),
    "patterns around a tree": (
        {"**/0": {"kernel": "a", "scale": "b"}, "**": "a"},
        "aba",
    ),
    "a list": ({"blocks": [{"scale": "b", "**": "a"}, "a"], "scale": "a"}, "aba"),
    "all paths": (
        {
            "scale": "b",
            "blocks/0/scale": "a",
            "blocks/0/kernel": "a",
            "blocks/1/scale": "a",
        },
        "baa",
    ),
    "a glob": ({"sc*": "b", "**": "a"}, "bbb"),
}


def meant(labels: str) -> Any:
    root, first, second = labels
    return {
        "scale": root,
        "blocks": [{"scale": first, "kernel": "a"}, {"scale": second}],
    }


@pytest.mark.parametrize("name", MEANINGS)
def test_a_mapping_is_a_tree_or_patterns_as_a_whole(name):
    spec, labels = MEANINGS[name]
    found = selection.resolve(spec, twice())
    assert found == jax.tree.leaves(meant(labels))
    tx = stepax.masked(stepax.scale(2.0), valued(spec, {"a": False, "b": True}))
    updates, _ = tx.update(twice(), tx.init(twice()))
    factors = {"a": 1.0, "b": 2.0}
    expected = jax.tree.map(lambda x: factors[x] * matrix(), meant(labels))
    assert_same_tree(updates, expected)


@pytest.mark.parametrize("name", MEANINGS)
def test_stacks_are_split_by_the_same_rule(name):
    spec, labels = MEANINGS[name]
    axes = valued(spec, {"a": None, "b": 0})
    tx, p = stepax.scale_by_rms(), twice()
    state = stepax.stacked(tx, axes).init(p)
    split = jax.tree.map(lambda x: [*matrix()] if x == "b" else matrix(), meant(labels))
    found = stepax.tree.unstack((p, state), axes)
    assert_same_tree(found, (split, tx.init(split)))
    assert_same_tree(stepax.tree.stack(found, axes), (p, state))


class Net(eqx.Module):
    bias: Any
    layer: eqx.nn.Linear


class Layers(nnx.Module):
    def __init__(self):
        self.bias = nnx.Param(jnp.ones(2))
        self.layer = nnx.Linear(2, 2, rngs=nnx.Rngs(0))


def _linear() -> Any:
    return eqx.nn.Linear(2, 2, key=jax.random.key(0))


MODULES = {
    "Equinox": lambda: Net(jnp.ones(2), _linear()),
    "nnx State": lambda: nnx.state(Layers(), nnx.Param),
    "FrozenDict": lambda: FrozenDict(
        {"bias": jnp.ones(2), "layer": {"bias": jnp.ones(2), "kernel": matrix()}}
    ),
}


@pytest.mark.parametrize("module", MODULES)
def test_a_module_with_a_field_of_the_name_is_no_exception(module):
    tree = MODULES[module]()
    mask = selection.resolve_mask({"bias": False, "**": True}, tree)
    assert mask == [x.ndim == 2 for x in jax.tree.leaves(tree)]
    alone = selection.resolve_mask({"bias/**": False, "**": True}, tree)
    assert sorted(alone) == [False, True, True]


# --- everything that takes patterns ---------------------------------------------------

NUMBERS = {"a": 0.1, "b": 0.3}
TAKERS = {
    f"{row.name}, {name}": (row, name, values)
    for row in ROWS.values()
    for name, values in [
        *specs_of(row.factory).items(),
        *(
            (k, NUMBERS)
            for k in BY_PATH
            if k in inspect.signature(row.factory).parameters
        ),
    ]
}


def _flat(tree: Any) -> dict:
    """The tree as a mapping of paths, which hyperparameters take."""
    paths = map("/".join, selection.leaf_names(twice()))
    return dict(zip(paths, jax.tree.leaves(tree), strict=True))


def _needed(row: Any, name: str) -> dict:
    """Other arguments: of two names of a mask one, and a seed."""
    beside = options_beside(row, name)
    return {k: x for k, x in beside.items() if k in ("key", "mask")}


def _made(taker: str, labels: Any) -> Any:
    row, name, values = TAKERS[taker]
    # As the only decay.
    options = _needed(row, name)
    decay = {} if values is NUMBERS else options_beside(row, name)
    return make(row, **options | decay | {name: valued(labels, values)})


def _step(taker: str, labels: Any) -> Any:
    row, tx = TAKERS[taker][0], _made(taker, labels)
    params, g = twice(), twice()
    state = tx.init(params)
    seen = of_examples(g) if row.kind == "aggregate" else g
    return state, tx.update(seen, state, params, **keywords(g))


@pytest.mark.few(3)
@pytest.mark.parametrize("taker", TAKERS)
def test_a_name_reaches_all_depths_of_whoever_takes_it(taker):
    row, name, _ = TAKERS[taker]
    patterns = {"scale": "b", "**": "a"}
    if name in make(row, **_needed(row, name)).call.shared:  # one for all parameters
        with pytest.raises(TypeError, match="must be one number"):
            _step(taker, patterns)
        return
    assert_same_tree(_step(taker, patterns), _step(taker, _flat(meant("bbb"))))
    alone = {"scale/**": "b", "**": "a"}
    assert_same_tree(_step(taker, alone), _step(taker, _flat(meant("baa"))))
    found = stepax.describe(_made(taker, patterns), twice()).patterns
    assert any(len(x["scale"]) == 3 for k, x in found.items() if k.endswith(name))


def _after_a_step(tx: Any) -> Any:
    g = twice()
    return tx.update(g, tx.init(twice()), twice())[0]


# From patterns that mean the scales, and leave the rest, to a result.
OTHERS = {
    "scale_by_depth": lambda names: _after_a_step(
        stepax.scale_by_depth(0.5, "blocks/{}", before=names)
    ),
    "prox": lambda names: stepax.minimize(
        lambda p: 0 * stepax.tree.sum(p),
        twice(),
        prox=dict.fromkeys(names, stepax.solve.prox.l1(9.0)),
        max_steps=3,
    ).params,
    "proximal": lambda names: _after_a_step(
        stepax.proximal(dict.fromkeys(names, stepax.solve.prox.l1(9.0)), 0.1)
    ),
    "pack": lambda names: stepax.tree.pack(
        twice(), by=dict.fromkeys(names, "b") | {"**": "a"}
    ),
    "outer": lambda names: stepax.contrib.diloco(
        stepax.sgd(0.1), stepax.sgd(0.7), 4, fragments=dict.fromkeys(names, 1)
    ).init(twice()),
    "with_weight_decay": lambda names: _after_a_step(
        stepax.with_weight_decay(
            stepax.sgd(0.1), dict.fromkeys(names, 0.3) | {"**": 0}, 1
        )
    ),
    "scion": lambda names: _after_a_step(
        stepax.contrib.scion(0.1, norms=dict.fromkeys(names, "sign") | {"**": "auto"})
    ),
    "adam_mini": lambda names: _after_a_step(
        stepax.contrib.scale_by_adam_mini(
            partition=dict.fromkeys(names, "whole") | {"**": "output"}
        )
    ),
    "depth": lambda names: stepax.transfer.depth(
        twice(), 4, 2, where=names[0]
    ).rates,
    "from_config": lambda names: _after_a_step(
        stepax.from_config(
            {"_target_": "adamw", "learning_rate": 0.1, "weight_decay": 0.5,
             "mask": dict.fromkeys(names, False) | {"**": True}}
        )
    ),
}  # fmt: skip


@pytest.mark.few(2)
@pytest.mark.parametrize("name", OTHERS)
def test_a_name_reaches_all_depths_outside_of_the_registry(name):
    assert_same_tree(OTHERS[name](["scale"]), OTHERS[name](["**/scale"]))


def test_heads_are_clipped_at_all_depths():
    layer = {"q": matrix(), "k": matrix()}
    params = {**layer, "blocks": {"0": layer}}
    tx = stepax.qk_clip(1.0, {"q": "k"})
    logits = {"q": 4.0, "blocks/0/q": 4.0}
    updates, _ = tx.update(params, tx.init(params), params, max_logits=logits)
    assert (updates["blocks"]["0"]["q"] == updates["q"]).all()


def test_describe_prints_what_each_pattern_matched():
    mask = {"blocks": {"scale": False, "**": True}, "**": True}
    rates = {"kernel": 1e-2, "**": 1e-3}
    tx = stepax.chain(
        stepax.adamw(rates, mask=mask),
        stepax.scale_by_path({"kernel": 3.0}),
        stepax.qk_clip(1.0, {"blocks/0/scale": "kernel"}),
    )
    found = stepax.describe(tx, twice())
    scales = ("blocks/0/scale", "blocks/1/scale")
    kernel = ("blocks/0/kernel",)
    assert found.patterns == {
        "0/learning_rate": {"kernel": kernel, "**": (*scales, "scale")},
        "0/mask": {"blocks/scale": scales, "blocks/**": kernel, "**": ("scale",)},
        "1/factors": {"kernel": kernel},
        "2/pairs": {"blocks/0/scale": scales[:1]},
    }
    assert "  2: blocks/0/scale, blocks/1/scale" in str(found)
    assert found.to_dict()["patterns"]["1/factors"] == {"kernel": [*kernel]}
    named = stepax.averages(stepax.sgd(0.1), {"scale": 0.9, "slow": 0.99})
    assert stepax.describe(named, twice()).patterns == {}


# --- patterns that once took exponential time -----------------------------------------


def test_many_stars_take_polynomial_time():
    path = {"x": matrix()}
    for i in range(24):
        path = {f"n{i}": path}
    path = {"other": matrix(), **path}
    stars = "/".join(["**", "n*"] * 14)
    for end, found in ("x", True), ("y", False):
        spec = {f"{stars}/**/{end}": True, "**": False}
        if found:
            assert selection.resolve_mask(spec, path) == [True, False]
            continue
        with pytest.raises(ValueError, match="matches no leaf"):
            selection.resolve_mask(spec, path)
    assert selection.is_match(("**",) * 40, ("n",) * 60)
    assert not selection.is_match((*("**", "n") * 20, "y"), ("n",) * 60)


@pytest.mark.parametrize(
    "pattern, path, is_whole",
    [
        ("**/a", "a/b/a", True),
        ("a", "a", True),
        ("a/**", "a", True),
        ("a/**", "a/b/c", True),
        ("**/a", "a/b", False),
        ("*", "a/b", False),
        ("**/b/*", "a/b", False),
        ("a/**/c/**/e", "a/c/d/e", True),
        ("a/**/c/**/e", "a/d/e", False),
        ("layers[0]*", "layers[0].kernel", True),
        ("layer[ab]", "layera", True),
    ],
)
def test_a_pattern_matches_all_of_a_path(pattern, path, is_whole):
    found = selection.is_match(tuple(pattern.split("/")), tuple(path.split("/")))
    assert found == is_whole
