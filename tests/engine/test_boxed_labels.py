"""Masks and labels in variables of Flax, as `jax.tree.map` over a state makes them."""

import re
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from cases import make
from compare import assert_same_tree
from flax import nnx
from loops import each
from mask_forms import TAKERS, options_beside

import stepax


@jax.tree_util.register_dataclass
@dataclass
class Box:
    """What other libraries put around a leaf."""

    value: Any


class Net(nnx.Module):
    def __init__(self):
        self.a = nnx.Param(jnp.full((2, 2), 0.5))
        self.layer = nnx.Dict(kernel=nnx.Param(jnp.full((2, 3), 0.5)))


def state() -> Any:
    return nnx.state(Net(), nnx.Param)


def label(path: Any) -> str:
    """Of one of the two arrays."""
    return "a" if "'a'" in jax.tree_util.keystr(path) else "b"


def mapped(tree: Any, values: dict[str, Any]) -> Any:
    """Labels, as users make them from a tree of parameters."""
    return jax.tree_util.tree_map_with_path(lambda path, _: values[label(path)], tree)


def pure() -> Any:
    """What Flax gives an optimizer: the state, with arrays in place of variables."""
    return nnx.as_pure(state())


BOXED = {
    # Parameters, and a tree of them that users map over.
    "a state of arrays": (pure, state),
    "dicts of arrays": (lambda: nnx.to_pure_dict(state()), state),
    "a state of variables": (state, state),
    "labels of arrays": (state, pure),
}


@pytest.mark.slow
@each(TAKERS)
def test_labels_in_variables_are_labels(taker):
    row, name, values = TAKERS[taker]
    options = options_beside(row, name)
    wanted = shapes(make(row, **{name: of(values)}, **options), pure())
    for make_params, labelled in BOXED.values():
        tx = make(row, **{name: mapped(labelled(), values)}, **options)
        assert shapes(tx, make_params()) == wanted


def shapes(tx: Any, params: Any) -> list[str]:
    """Of its state: those of the two arrays differ, and tell whose states are there."""
    return [str(x) for x in jax.tree.leaves(jax.eval_shape(tx.init, params))]


def of(values: dict[str, Any]) -> Any:
    return lambda params: mapped(params, values)


@pytest.mark.parametrize("tree", [list, tuple, dict])
def test_boxes_of_other_libraries_are_opened(tree):
    params, mask = [jnp.ones(2), jnp.ones(3)], [Box(True), Box(False)]
    if tree is dict:
        params, mask = ({"x": xs[0], "y": xs[1]} for xs in (params, mask))
    else:
        params, mask = tree(params), tree(mask)
    plain = jax.tree.map(lambda x: x.value, mask, is_leaf=lambda x: isinstance(x, Box))
    for spec in mask, lambda _: mask:
        tx, alike = (stepax.masked(stepax.sgd(1.0), m) for m in (spec, plain))
        found, wanted = (t.update(params, t.init(params))[0] for t in (tx, alike))
        assert_same_tree(found, wanted)


def test_a_box_is_a_mask_of_one_array():
    tx = stepax.masked(stepax.scale(2.0), Box(True))
    assert tx.update(jnp.ones(()), tx.init(jnp.ones(())))[0] == 2


def test_a_model_trains_with_a_mask_of_its_state():
    model, mask = Net(), jax.tree.map(lambda p: p.ndim > 1, state())
    tx: Any = stepax.adamw(0.1, mask=mask)
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    optimizer.update(model, jax.tree.map(jnp.zeros_like, state()))
    assert (model.a.get_value() < 0.5).all()  # it decayed


@pytest.mark.parametrize("params", [pure, state])
def test_errors_do_not_name_the_field_of_a_variable(params):
    wrong = mapped(state(), {"a": 0.5, "b": True})
    for mask in {"layer/kernal": True}, {"layer": True}, wrong:
        tx = stepax.masked(stepax.sgd(0.1), mask)
        with pytest.raises((ValueError, TypeError), match="layer|'a'|`0.5`") as caught:
            tx.init(params())
        assert not re.search(r"\bvalue\b(?! of)", str(caught.value)), caught.value
    tx, ones = stepax.adam(0.1), jax.tree.map(jnp.ones_like, params())
    wrong = jax.tree.map(lambda x: jnp.ones(3), ones)
    with pytest.raises(ValueError, match=r"\['a'\]") as caught:
        tx.update(wrong, tx.init(ones), ones)
    assert ".value" not in str(caught.value)
