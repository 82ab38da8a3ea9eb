"""Averages of the parameters in bfloat16, with remainders of 16 or 8 bits."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import types
from jax.sharding import NamedSharding, PartitionSpec

import stepax
from stepax.distributed import state_sharding


widths = pytest.mark.parametrize("width", [16, 8])
KINDS = "float32", "bfloat16", "float16"


def start(dtype="float32") -> Any:
    rng = np.random.default_rng(0)
    p = {"w": rng.normal(size=(8, 16)), "b": 1e-3 * rng.normal(size=3), "s": 0.5}
    return {k: jnp.asarray(x, dtype) for k, x in p.items()} | {"none": None}


def train(tx, p, steps=6) -> Any:
    """Parameters and state after some jitted steps."""

    def step(carry, i):
        p, state = carry
        g = jax.tree.map(lambda x: x * jnp.sin(i).astype(x.dtype), p)
        u, state = tx.update(g, state, p)
        return (stepax.apply_updates(p, u), state), None

    run = lambda p: jax.lax.scan(step, (p, tx.init(p)), jnp.arange(1.0, steps + 1))[0]
    return jax.jit(run)(p)


def averaged(remainder=None, **options):
    return stepax.averages(stepax.sgd(0.3), 0.9, remainder=remainder, **options)


def joined(state):
    """The average in float32, as it is found for parameters of that dtype."""
    wide = lambda x: None if x is None else jnp.zeros(x.rounded.shape)
    is_end = lambda x: x is None or hasattr(x, "rounded")
    return stepax.eval_params(state, jax.tree.map(wide, state.average, is_leaf=is_end))


def equal(x, y):
    assert jax.tree.structure(x) == jax.tree.structure(y)
    jax.tree.map(np.testing.assert_array_equal, x, y)


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("given", [None, "bfloat16", jnp.float32])
def test_averages_with_16_bits_are_those_of_single_precision(dtype, given):
    p = start(dtype)
    q, state = train(averaged(16, dtype=given), p)
    wanted_q, wanted = train(averaged(), p)
    equal(q, wanted_q)
    equal(joined(state), wanted.average)
    equal(stepax.eval_params(state, p), stepax.eval_params(wanted, p))
    halves = state.average["w"]
    assert halves.rounded.dtype == jnp.bfloat16
    assert halves.remainder.dtype == jnp.int16


@pytest.mark.slow
def test_averages_with_8_bits_keep_24_of_32():
    p = start()
    state = averaged(8).init(p)
    assert state.average["w"].remainder.dtype == jnp.int8
    for k, x in joined(state).items():
        if x is not None:
            np.testing.assert_allclose(x, p[k], rtol=2.0**-15)
    # Of each of six roundings at most 2^-16.
    found = joined(train(averaged(8), p)[1])
    wanted = train(averaged(), p)[1].average
    np.testing.assert_allclose(found["w"], wanted["w"], rtol=2.0**-13)


@widths
def test_bytes_for_each_parameter(width):
    p = {"w": jnp.zeros((64, 64), jnp.bfloat16)}
    state = jax.eval_shape(averaged(width).init, p)
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state.average))
    assert size == (2 + width // 8) * 64 * 64


@pytest.mark.slow
@widths
def test_steps_are_alike_within_jit_and_without(width):
    p, tx = start("bfloat16"), averaged(width)
    state = again = tx.init(p)
    assert types(jax.jit(tx.init)(p)) == types(state)
    for _ in range(3):
        _, state = tx.update(p, state, p)
        _, again = jax.jit(tx.update)(p, again, p)
        assert types(state) == types(tx.init(p))
    equal(state, again)


AROUND = {
    "MultiSteps": lambda tx: stepax.MultiSteps(tx, 2).gradient_transformation(),
    "masked": lambda tx: stepax.masked(tx, {"w": True, "**": False}),
    "chain": lambda tx: stepax.chain(stepax.clip(1.0), tx),
    "masters": lambda tx: stepax.master_weights(tx, remainder=16),
    "finite": lambda tx: stepax.apply_if_finite(tx, 2),
    "inject": lambda tx: stepax.inject_hyperparams(
        lambda rate: stepax.chain(stepax.scale(rate), tx)
    )(1.0),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", AROUND)
def test_it_goes_into_wrappers(name):
    p, wrap = start("bfloat16"), AROUND[name]
    q, state = train(wrap(averaged(16)), p)
    wanted_q, wanted = train(wrap(averaged()), p)
    equal(q, wanted_q)
    equal(stepax.eval_params(state, p), stepax.eval_params(wanted, p))


def test_packed_parameters_have_the_average_of_the_tree():
    p = {k: x for k, x in start().items() if x is not None}
    packed, tx = stepax.tree.pack(p), averaged(16)
    _, state = train(tx, packed)
    equal(stepax.eval_params(state, p), train(averaged(), p)[1].average)


@pytest.mark.slow
def test_it_is_mapped_and_donated_and_lies_like_the_parameters():
    p, tx = {"w": start()["w"]}, averaged(8)
    both = jax.tree.map(lambda x: jnp.stack([x, x]), p)
    states = jax.vmap(tx.init)(both)
    _, states = jax.vmap(tx.update)(both, states, both)
    _, wanted = tx.update(p, tx.init(p), p)
    equal(jax.tree.map(lambda x: x[1], states), wanted)
    mesh = jax.make_mesh((8,), ("data",))
    place = NamedSharding(mesh, PartitionSpec("data"))
    p = jax.device_put(p, place)
    given = tx.init(p)
    step = jax.jit(tx.update, donate_argnums=1).lower(p, given, p).compile()
    assert "all-" not in str(step.as_text())
    _, new = step(p, given, p)
    assert given.average["w"].rounded.is_deleted()
    for found in (new, jax.jit(tx.init)(p)):
        shardings = [x.sharding for x in jax.tree.leaves(found.average)]
        assert all(x.is_equivalent_to(place, 2) for x in shardings)
    wanted = jax.tree.leaves(state_sharding(tx, p).average)
    assert all(x.is_equivalent_to(place, 2) for x in wanted)


@pytest.mark.slow
def test_a_gradient_in_double_precision_changes_no_type():
    with jax.enable_x64():
        p = start() | {"wide": jnp.ones(2, "float64")}
        tx = averaged(16)
        state = tx.init(p)
        assert state.average["wide"].dtype == jnp.float64
        g = jax.tree.map(lambda x: x.astype("float64"), p)
        _, new = tx.update(g, state, p)
        assert types(new) == types(state)


def test_nothing_is_warned_of():
    p = {"w": start("bfloat16")["w"]}
    assert not stepax.describe(averaged(16), p).warnings


@pytest.mark.parametrize("remainder", [4, 32, True, 16.0, "16"])
def test_other_remainders_are_refused(remainder):
    with pytest.raises(ValueError, match="`averages`: `remainder` must be 16, 8"):
        averaged(remainder)


def test_errors_say_what_to_do():
    with pytest.raises(ValueError, match="averages are .* but `dtype` is float16"):
        averaged(16, dtype=jnp.float16)
    p = start()
    state = {kind: jax.eval_shape(averaged(kind).init, p) for kind in (None, 16)}
    with pytest.raises(ValueError, match=r"\['w'\].* `average` in the state"):
        jax.eval_shape(stepax.eval_params, state[16], p | {"w": jnp.ones(2)})
    with pytest.raises(ValueError, match=r"int8, not int16, .*\['b'\].* arguments"):
        jax.eval_shape(averaged(8).update, p, state[16], p)
    for one, other in (None, 16), (16, None):
        with pytest.raises(ValueError, match=r"`average`.*was this state made"):
            jax.eval_shape(averaged(one).update, p, state[other], p)
