"""What holds for every wrapper: it goes around, and into, whatever else there is."""

import jax
import jax.numpy as jnp
import pytest
from cases import ARGUMENTS, TREES, gradients, make, mixed, rows, types
from keywords import keywords
from runs import equal

import stepax


AROUND = {
    "chain": lambda tx: stepax.chain(stepax.clip(1e3), tx),
    "masked": lambda tx: stepax.masked(tx, ARGUMENTS["mask"]),
    "partition": lambda tx: stepax.partition(
        {"a": tx, "b": tx}, ARGUMENTS["param_labels"]
    ),
    "MultiSteps": lambda tx: stepax.MultiSteps(tx, 2).gradient_transformation(),
    "apply_if_finite": lambda tx: stepax.apply_if_finite(tx, 1),
    "inject_hyperparams": lambda tx: stepax.inject_hyperparams(
        lambda rate: stepax.chain(tx, stepax.scale(rate))
    )(1.0),
}


def step(tx, g, state, p):
    return tx.update(g, state, p, **keywords(g))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("row", rows(kind="wrapper", takes="inner"))
def test_it_goes_into_others(row, around, dtype):
    p, g = mixed(dtype, dtype)
    tx = AROUND[around](make(row))
    state = tx.init(p)
    u, new = jax.eval_shape(lambda s: step(tx, g, s, p), state)
    assert types(new) == types(state)
    assert jax.tree.structure(new) == jax.tree.structure(state)
    assert [x.dtype for x in jax.tree.leaves(u)] == [x.dtype for x in g.values()]


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("row", rows(kind="wrapper", takes="inner"))
def test_others_go_into_it(row, around):
    p, g = mixed("bfloat16", "bfloat16")
    tx = make(row, inner=AROUND[around](stepax.adam(1e-2)))
    state = tx.init(p)
    u, new = jax.eval_shape(lambda s: step(tx, g, s, p), state)
    assert types(new) == types(state)
    assert jax.tree.structure(u) == jax.tree.structure(g)


@pytest.mark.parametrize("row", rows(kind="wrapper", takes="inner"))
def test_keywords_reach_what_is_inside(row):
    def update(updates, state, params=None, *, factor, **extra_args):
        return jax.tree.map(lambda x: x * factor, updates), state

    inner = stepax.GradientTransformationExtraArgs(stepax.scale_by_adam().init, update)
    p = TREES["dict"]()
    tx = make(row, inner=inner)
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
        assert (mark == "specs") == (shape in ((4, 3), (3,)))


@pytest.mark.parametrize("row", rows(kind="wrapper", takes="inner"))
def test_a_narrow_state_can_be_donated(row):
    p, _ = mixed("bfloat16", "bfloat16")
    g, tx = gradients(p), make(row)
    state = tx.init(p)
    numbers = [x for x in jax.tree.leaves((p, state)) if "key" not in str(x.dtype)]
    buffers = [x.unsafe_buffer_pointer() for x in numbers]
    assert len(set(buffers)) == len(buffers)
    lowered = jax.jit(tx.update, donate_argnums=1).lower(g, state, p, **{})
    assert "tf.aliasing_output" in lowered.as_text()
