"""Parameters moved by updates, towards others, or now and then all the way."""

import logging

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from stepax import apply_updates, incremental_update, periodic_update


A = jnp.array([0.1, -2.0, 3.0])
FLOAT0 = np.zeros((3,), jax.dtypes.float0)

# What Optax accepts too: parameters and updates.
PAIRS = {
    "float32": (A, A / 3),
    "bfloat16": (A.astype(jnp.bfloat16), (A / 3).astype(jnp.bfloat16)),
    "wide update": (A.astype(jnp.bfloat16), A / 3),
    "narrow update": (A, A.astype(jnp.bfloat16)),
    "two narrow": (A.astype(jnp.bfloat16), A.astype(jnp.float16)),
    "complex": (A * 1j, A * (2 - 1j)),
    "real to complex": (A * 1j, A),
    "integer": (jnp.arange(3), A),
    "unsigned": (jnp.uint8(3), 1.5),
    "bool": (True, 1.0),
    "float": (1.0, jnp.float32(0.1)),
    "int": (1, 0.5),
    "complex number": (1j, 1.0),
    "numpy": (np.ones(2), np.full(2, 0.1)),
    "numpy number": (np.float64(1), 1.0),
    "weak": (jnp.asarray(1.0), jnp.asarray(0.1)),
    "no dimension": (jnp.float32(1), jnp.float32(0.1)),
    "no element": (jnp.zeros((0, 3)), jnp.zeros((0, 3))),
    "none": ({"a": None, "b": A}, {"a": None, "b": A}),
    "no parameter": ({"a": None, "b": A}, {"a": A, "b": A}),
    "hole": ([optax.MaskedNode(), A], [optax.MaskedNode(), A]),
    "empty": ({}, {}),
}


def same(ours, theirs):
    """Equal structures, dtypes and bits; and no weak types, which would retrace."""
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert isinstance(x, jax.Array) and not x.weak_type
        assert x.dtype == jnp.result_type(y)
        np.testing.assert_array_equal(x, y)


def same_key(x, y):
    np.testing.assert_array_equal(jax.random.key_data(x), jax.random.key_data(y))


@pytest.mark.few(1)
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_apply_updates_is_optax_s(pair, wrap):
    params, updates = PAIRS[pair]
    with jax.numpy_dtype_promotion("standard"):
        expected = wrap(optax.apply_updates)(params, updates)
    same(wrap(apply_updates)(params, updates), expected)


def test_sixty_four_bits_are_kept(x64):
    p = {"w": jnp.asarray(A, jnp.float64), "f": 1.0, "n": A.astype(jnp.float32)}
    u = jax.tree.map(lambda p: jnp.asarray(p / 7, jnp.float64), p)
    with jax.numpy_dtype_promotion("standard"):
        expected = optax.apply_updates(p, u)
    same(apply_updates(p, u), expected)


class Model(eqx.Module):
    weight: jax.Array
    count: jax.Array
    key: jax.Array
    name: str
    activation: object


def model():
    return Model(A, jnp.arange(3), jax.random.key(0), "m", jax.nn.relu)


def test_a_parameter_without_update_stays_whatever_it_is():
    before = model()
    none = jax.tree.map(lambda _: None, before)
    after = apply_updates(before, eqx.tree_at(lambda m: m.weight, none, A, is_leaf=nil))
    np.testing.assert_array_equal(after.weight, 2 * A)
    assert after.count is before.count
    assert after.key is before.key
    assert after.activation is jax.nn.relu
    assert after.name == "m"


def nil(x):
    return x is None


def test_float0_updates_leave_integers_and_keys_alone():
    p = {"w": A, "i": jnp.arange(3), "b": jnp.array([True]), "k": jax.random.key(1)}
    u = jax.grad(lambda p: jnp.sum(p["w"] ** 2), allow_int=True)(p)
    assert u["i"].dtype == u["k"].dtype == jax.dtypes.float0
    for after in apply_updates(p, u), jax.jit(lambda p: apply_updates(p, u))(p):
        np.testing.assert_array_equal(after["w"], p["w"] + u["w"])
        np.testing.assert_array_equal(after["i"], p["i"])
        np.testing.assert_array_equal(after["b"], p["b"])
        same_key(after["k"], p["k"])


# The names of the two trees, in the order of the arguments.
FUNCTIONS = {
    "params updates": apply_updates,
    "new_tensors old_tensors": lambda x, y: incremental_update(x, y, 0.1),
    "new_tensors old_tensors ": lambda x, y: periodic_update(x, y, 4, 2),
}

WRONG = [
    (
        {"w": [A]},
        {"w": [jnp.float32(1)]},
        ValueError,
        r"`{1}` has shape \(\) at \['w'\]\[0\], expected \(3,\) as in `{0}`",
    ),
    (A, A[None], ValueError, r"`{1}` has shape \(1, 3\) at the root, expected \(3,\)"),
    ({"w": A}, {"v": A}, ValueError, r"only in `{1}`: \['v'\].* in `{0}`: \['w'\]"),
    ({"w": A, "v": A}, {"w": A}, ValueError, r"only in `{0}`: \['v'\]"),
    ([A], (A,), ValueError, "`{1}` and `{0}` differ in structure"),
    ({"w": {"v": A}}, {"w": None}, ValueError, r"`{0}`: \['w'\]\['v'\]"),
    ({"w": A}, {"w": {"v": A}}, TypeError, r"`{1}` holds a dict of 1 at \['w'\]"),
    ({"w": A}, {"w": "a"}, TypeError, r"`{1}` holds a `str` at \['w'\], expected an"),
]


@pytest.mark.parametrize("names", FUNCTIONS)
@pytest.mark.parametrize("first, second, error, message", WRONG)
def test_a_mismatch_names_the_path(names, first, second, error, message):
    with pytest.raises(error, match=message.format(*names.split())):
        FUNCTIONS[names](first, second)


def test_an_update_for_a_function_is_refused():
    with pytest.raises(TypeError, match=r"`params` holds a .* at \['f'\]"):
        apply_updates({"f": jnp.sin}, {"f": A})


def test_each_leaf_is_one_equation():
    p = {"a": A, "b": A.astype(jnp.bfloat16), "c": None, "d": [A, 1.0]}
    u = {"a": A, "b": A, "c": None, "d": [None, 2.0]}
    assert len(jax.make_jaxpr(apply_updates)(p, u).eqns) == 3
    mixed = jax.make_jaxpr(lambda x, y: incremental_update(x, y, 0.1))(p, p)
    assert len(mixed.eqns) == 4


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_the_sharding_of_a_parameter_is_kept(axis_type):
    mesh = jax.make_mesh((8,), ("d",), axis_types=(axis_type,))
    sharding = NamedSharding(mesh, PartitionSpec("d"))
    p = jax.device_put(jnp.ones((8, 2), jnp.bfloat16), sharding)
    for after in apply_updates(p, p.astype(jnp.float32)), jax.jit(apply_updates)(p, p):
        assert after.sharding.is_equivalent_to(sharding, 2)


MIXED = ["float32", "wide update", "narrow update", "complex", "real to complex"]
MIXED += ["int", "float", "numpy", "weak", "no dimension", "no element", "none"]


@pytest.mark.few(1)
@pytest.mark.parametrize("pair", [*MIXED, "empty", "hole"])
@pytest.mark.parametrize("step_size", [0.1, np.float32(0.3), jnp.float32(0.3)])
def test_incremental_update_is_optax_s(pair, step_size):
    new, old = PAIRS[pair]
    with jax.numpy_dtype_promotion("standard"):
        ask = jax.jit(lambda x, y: optax.incremental_update(x, y, step_size))
        expected = ask(new, old)
    # Jitted: Optax alone rounds after each of three calls, we fuse them.
    found = jax.jit(lambda x, y: incremental_update(x, y, step_size))(new, old)
    same(found, expected)


def test_incremental_update_is_none_where_the_new_tensors_are():
    found = incremental_update({"a": None, "b": A}, {"a": A, "b": A}, 0.1)
    assert found["a"] is None
    with pytest.raises(TypeError, match=r"`old_tensors` holds `None` at \['a'\]"):
        incremental_update({"a": A}, {"a": None}, 0.1)


def test_what_cannot_be_averaged_is_kept():
    new, old = model(), eqx.tree_at(lambda m: m.key, model(), jax.random.key(1))
    found = incremental_update(new, old, 0.5)
    assert found.activation is jax.nn.relu
    assert found.key is old.key
    np.testing.assert_array_equal(found.weight, A)


@pytest.mark.few(1)
@pytest.mark.parametrize("pair", ["float32", "complex", "integers", "none", "empty"])
@pytest.mark.parametrize("steps, period", [(4, 2), (3, 2), (0, 5), (jnp.int32(6), 3)])
def test_periodic_update_is_optax_s(pair, steps, period):
    new, old = (jnp.arange(3), A.astype(int)) if pair == "integers" else PAIRS[pair]
    expected = optax.periodic_update(new, old, steps, period)
    same(periodic_update(new, old, steps, period), expected)
    same(jax.jit(periodic_update)(new, old, steps, period), expected)


def test_periodic_update_takes_models_and_keys():
    new, old = model(), eqx.tree_at(lambda m: m.key, model(), jax.random.key(1))
    for steps, chosen in (4, new), (5, old):
        found = periodic_update(new, old, steps, 2)
        assert found.activation is jax.nn.relu
        same_key(found.key, chosen.key)


def test_periodic_update_refuses_another_dtype():
    with pytest.raises(TypeError, match=r"`old_tensors` has dtype bfloat16 at \['w'\]"):
        periodic_update({"w": A}, {"w": A.astype(jnp.bfloat16)}, 4, 2)


@pytest.mark.parametrize("update", [periodic_update, incremental_update, apply_updates])
def test_calls_from_python_compile_once(update, caplog):
    def call(i):
        more = {periodic_update: (i, 2), incremental_update: (i / 10,)}.get(update, ())
        return update({"w": A + i}, {"w": A}, *more)

    call(1)
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        call(2)
    assert "Compiling" not in caplog.text
