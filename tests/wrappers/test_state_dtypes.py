"""`with_state_dtypes` stores parts of a state in other dtypes, at no further cost."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import TREES, gradients, make, rows, types
from inside import slots_like_params
from keywords import keywords
from runs import close, compare, equal, everyhow, many, parameters

import stepax
import stepax.contrib as contrib


with_state_dtypes = stepax.with_state_dtypes


def names(tx):
    """What the state has for each parameter."""
    return sorted({part.name for part in slots_like_params(tx)[0] if part})


def cast(tree, dtype):
    return jax.tree.map(lambda x: x.astype(dtype), tree)


@pytest.mark.thinned
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("row", rows(kind="optimizer"))
def test_the_dtypes_of_any_optimizer_are_kept(row, dtype):
    inner = make(row)
    tx = with_state_dtypes(inner, {name: dtype for name in names(inner)})
    p = cast(TREES["dict"](), "bfloat16" if dtype == "float32" else "float32")
    g = gradients(p)
    state = tx.init(p)
    step = lambda s: tx.update(g, s, p, **keywords(g))
    u, new = jax.eval_shape(step, state)
    assert types(new) == types(state)
    assert jax.tree.structure(state) == jax.tree.structure(inner.init(p))
    assert [x.dtype for x in jax.tree.leaves(u)] == [x.dtype for x in g.values()]
    parts, treedef = slots_like_params(inner)
    for part, stored in zip(parts, treedef.flatten_up_to(state), strict=True):
        for x in jax.tree.leaves(stored) if part else ():
            assert x.dtype in (dtype, bool)


WRAPPED = {
    "adamw": lambda tx: tx,
    "masked": lambda tx: stepax.masked(tx, {"w": True, "b": False}),
    "partition": lambda tx: stepax.partition({"a": tx, "b": tx}, {"w": "a", "b": "b"}),
    "MultiSteps": lambda tx: stepax.MultiSteps(tx, 1),
    "apply_if_finite": lambda tx: stepax.apply_if_finite(tx, 1),
    "schedule_free": lambda tx: contrib.schedule_free(tx, 0.1),
    "injected": lambda tx: stepax.inject_hyperparams(
        lambda rate: stepax.chain(tx, stepax.scale(rate))
    )(1.0),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("wrapped", WRAPPED)
def test_parts_are_found_in_any_wrapper(wrapped):
    p, g = cast(parameters(), "bfloat16"), cast(many(1)[0], "bfloat16")
    tx = with_state_dtypes(WRAPPED[wrapped](stepax.adamw(0.1)), {"nu": "float32"})
    state = tx.init(p)
    _, new = tx.update(g, state, p)
    assert types(new) == types(state)
    found = stepax.tree.get_all_with_path(new, "nu")
    assert {str(x.dtype) for x in jax.tree.leaves([x for _, x in found])} == {"float32"}
    found = stepax.tree.get_all_with_path(new, "mu")
    assert {str(x.dtype) for x in jax.tree.leaves([x for _, x in found])} == {
        "bfloat16"
    }


def test_names_of_parameters_are_no_names_of_parts():
    p = {"nu": jnp.ones(2), "mu": {"nu": jnp.ones(3)}}
    state = with_state_dtypes(stepax.adam(0.1), {"nu": "bfloat16"}).init(p)
    assert {x.dtype for x in jax.tree.leaves(state[0].mu)} == {jnp.dtype("float32")}
    assert {x.dtype for x in jax.tree.leaves(state[0].nu)} == {jnp.dtype("bfloat16")}


@pytest.mark.few(1)
@everyhow
def test_moments_in_single_precision_are_those_of_single_precision(run):
    p, gs = cast(parameters(), "bfloat16"), [cast(g, "bfloat16") for g in many(3)]
    tx = with_state_dtypes(stepax.adam(0.1), {"mu": "float32", "nu": "float32"})
    _, state = run(tx, gs, p)
    wide = [cast(g, "float32") for g in gs]
    _, wanted = run(stepax.adam(0.1), wide, cast(p, "float32"))
    compare(close, state, wanted)


def length(tx, dtype="bfloat16", steps=1000):
    """The length of Adam's step after many equal gradients, with a rate of 1."""
    p, g = jnp.ones(3, dtype), jnp.full(3, 0.1, dtype)
    step = lambda s, _: tx.update(g, s, p)[::-1]
    run = jax.jit(lambda: jax.lax.scan(step, tx.init(p), None, steps)[1])
    return abs(float(run()[-1][0]))


@pytest.mark.slow
def test_steps_of_adam_in_bfloat16_have_the_right_length():
    adam = stepax.adam(1.0)
    assert abs(length(adam) - 1) > 0.1
    both = with_state_dtypes(adam, {"mu": "float32", "nu": "float32"})
    np.testing.assert_allclose(length(both), 1, rtol=2.0**-8)


def test_it_costs_nothing_and_half_the_bytes():
    p = {str(i): jnp.ones(3) for i in range(20)}
    bare = stepax.adamw(0.1)
    tx = with_state_dtypes(bare, {"mu": "bfloat16", "nu": "bfloat16"})
    count = lambda tx: len(jax.make_jaxpr(tx.update)(p, tx.init(p), p).eqns)
    size = lambda tx: sum(x.nbytes for x in jax.tree.leaves(tx.init(p)) if x.ndim)
    assert count(tx) == count(bare)
    assert 2 * size(tx) == size(bare)


def test_complex_numbers_and_integers_stay():
    p = {"c": jnp.ones(2, "complex64"), "n": jnp.arange(3), "w": jnp.ones(2)}
    tx = with_state_dtypes(stepax.adam(0.1), {"mu": "bfloat16"})
    found = {k: str(x.dtype) for k, x in tx.init(p)[0].mu.items()}
    assert found == {"c": "complex64", "n": "int32", "w": "bfloat16"}


def test_errors_list_what_there_is():
    p, tx = jnp.ones(2), with_state_dtypes(stepax.adam(0.1), {"v": "bfloat16"})
    with pytest.raises(ValueError, match=r"given \['v'\], but .* are \['mu', 'nu'\]"):
        tx.init(p)
    for wrong in "int8", "bf16":
        said = rf"`dtypes\['nu'\]` of .* a real floating-point dtype, but is .?{wrong}"
        with pytest.raises(TypeError, match=said):
            with_state_dtypes(stepax.adam(0.1), {"nu": wrong})
    not_called: Any = stepax.adam
    with pytest.raises(TypeError, match="`inner` of `with_state_dtypes`"):
        with_state_dtypes(not_called, {})


def test_the_state_is_that_of_the_inner_transformation():
    p, inner = parameters(), stepax.adamw(0.1)
    state = with_state_dtypes(inner, {"mu": "float32"}).init(p)
    compare(equal, state, inner.init(p))
