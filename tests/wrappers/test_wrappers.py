"""What holds for every wrapper by itself; test_wrapper_pairs.py has them together."""

import inspect

import jax
import jax.numpy as jnp
import pytest
from cases import TREES, gradients, make, mixed, rows
from keywords import keywords
from runs import equal

import stepax


@pytest.mark.few(4)
@pytest.mark.parametrize("row", rows(kind="wrapper", takes="inner"))
def test_keywords_reach_what_is_inside(row):
    def update(updates, state, params=None, *, factor, **extra_args):
        return jax.tree.map(lambda x: x * factor, updates), state

    inner = stepax.GradientTransformationExtraArgs(stepax.scale_by_adam().init, update)
    p = TREES["dict"]()
    decay = "weight_decay" in inspect.signature(row.factory).parameters
    try:
        tx = make(row, inner=inner, **({"weight_decay": 0.0} if decay else {}))
    except TypeError as error:  # this one is a function, not a rule
        assert "cannot be applied to the arrays of a stack" in str(error)
        return
    found, _ = tx.update(p, tx.init(p), p, **keywords(p), factor=0.0)
    equal(found["w"], 0.0)


@pytest.mark.parametrize("row", rows(kind="wrapper", takes="inner"))
def test_parts_shaped_as_the_parameters_can_be_mapped(row):
    p = {"w": jnp.ones((4, 3), "bfloat16"), "b": jnp.ones(3), "none": None}
    tx = make(row)
    state = tx.init(p)
    if not any(jnp.shape(x) == (4, 3) for x in jax.tree.leaves(state)):
        pytest.skip("it keeps nothing that is shaped as they are")
    specs = {"w": "specs", "b": "specs", "none": None}
    name = lambda x, spec: spec
    marked = stepax.tree.map_params(
        tx, name, state, specs, transform_non_params=lambda x: "other"
    )
    found = jax.tree.leaves(marked)
    assert set(found) == {"specs", "other"}
    shapes = [jnp.shape(x) for x in jax.tree.leaves(state)]
    for shape, mark in zip(shapes, found, strict=True):
        assert (mark == "specs") == (shape in ((4, 3), (4, 1), (3,)))  # or by rows


@pytest.mark.few(3)
@pytest.mark.parametrize("row", rows(kind="wrapper", takes="inner"))
def test_a_narrow_state_can_be_donated(row):
    p, _ = mixed("bfloat16", "bfloat16")
    g, tx = gradients(p), make(row)
    state = tx.init(p)
    numbers = [x for x in jax.tree.leaves((p, state)) if "key" not in str(x.dtype)]
    buffers = [x.unsafe_buffer_pointer() for x in numbers]
    assert len(set(buffers)) == len(buffers)
    lowered = jax.jit(tx.update, donate_argnums=1).lower(
        g, state, p, value=jnp.float32(1.0)
    )
    assert "tf.aliasing_output" in lowered.as_text()
