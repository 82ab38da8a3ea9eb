"""Arithmetic on trees: Optax's values and dtypes, and what Optax does not do."""

import inspect
import operator
import warnings
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import stepax
from stepax import tree, tree_utils


class Pair(NamedTuple):
    w: object
    b: object


def draw(*shape, seed=0, dtype: Any = np.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


C = draw(5) + 1j * draw(5, seed=1)
F0 = np.zeros((2,), jax.dtypes.float0)
TREES = {
    "dict": {"w": draw(37, 129), "b": draw(129, seed=1)},
    "named tuple": Pair(draw(3, 4, 5), [draw(4)]),
    "module": eqx.filter(eqx.nn.Linear(3, 4, key=jax.random.key(0)), eqx.is_array),
    "none": {"w": draw(4), "b": None},
    "one array": draw(1000),
    "no dimension": [draw(), draw(seed=1)],
    "no element": [draw(0, 3), draw(2)],
    "complex": {"c": C, "r": draw(4)},
    "bfloat16": {"w": draw(5, 4, dtype=jnp.bfloat16)},
    "float16": {"w": draw(5, 4, dtype=jnp.float16)},
    "mixed": [draw(4), draw(3, dtype=jnp.bfloat16)],
    "integers": [jnp.arange(1, 5), jnp.array([3], jnp.int8)],
    "numbers": {"f": 1.5, "g": -2.5},
    "numpy": [np.ones((2, 3), np.float32), np.full(3, 0.1, np.float32)],
    "empty": {},
    "nothing": None,
}
EXACT = ["dict", "named tuple", "module", "none", "one array", "no dimension"]
EXACT += ["no element", "complex", "numpy"]
MEETING = ["bfloat16", "float16", "mixed", "complex"]  # with a float32 scalar
SCALAR = jnp.float32(0.3)

CALLS = {
    "add": lambda t, x, y: t.add(x, y),
    "add three": lambda t, x, y: t.add(x, y, x),
    "sub": lambda t, x, y: t.sub(x, y),
    "mul": lambda t, x, y: t.mul(x, y),
    "div": lambda t, x, y: t.div(x, y),
    "scale": lambda t, x, y: t.scale(0.3, x),
    "scale by an array": lambda t, x, y: t.scale(SCALAR, x),
    "add_scale": lambda t, x, y: t.add_scale(x, 0.3, y),
    "add_scale by an array": lambda t, x, y: t.add_scale(x, SCALAR, y),
    "real": lambda t, x, y: t.real(x),
    "conj": lambda t, x, y: t.conj(x),
    "where": lambda t, x, y: t.where(jnp.asarray(False), x, y),
    "zeros_like": lambda t, x, y: t.zeros_like(x),
    "ones_like": lambda t, x, y: t.ones_like(x, jnp.float16),
    "full_like": lambda t, x, y: t.full_like(x, 7),
    "cast": lambda t, x, y: t.cast(x, jnp.complex64),
    "cast to its own": lambda t, x, y: t.cast(x, None),
    "cast_like": lambda t, x, y: t.cast_like(x, y),
    "batch_shape": lambda t, x, y: t.batch_shape(x, (2, 1)),
    "update_moment": lambda t, x, y: t.update_moment(x, y, 0.9, 2),
    "first moment": lambda t, x, y: t.update_moment(x, y, 0.9, 1),
    "norm moment": lambda t, x, y: t.update_moment_per_elem_norm(x, y, 0.9, 2),
    "third norm": lambda t, x, y: t.update_moment_per_elem_norm(x, y, 0.9, 3),
    "infinity": lambda t, x, y: t.update_infinity_moment(x, y, 0.9, 1e-8),
    "bias_correction": lambda t, x, y: t.bias_correction(x, 0.9, jnp.int32(3)),
    "clip": lambda t, x, y: t.clip(t.real(x), -0.5, 0.5),
    "clip below": lambda t, x, y: t.clip(t.real(x), min_value=SCALAR),
}


def same(ours, theirs):
    """Equal structures, and leaves equal in dtype, shape and every bit."""
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert jnp.result_type(x) == jnp.result_type(y)
        np.testing.assert_array_equal(x, y)
        assert getattr(y, "weak_type", True) or not x.weak_type


def every(calls, t, *args):
    return {name: call(t, *args) for name, call in calls.items()}


def oracle(f, *args):
    with jax.numpy_dtype_promotion("standard"):
        return f(*args)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", [x for x in TREES if x != "integers"])
def test_arithmetic_is_optax_s_bit_for_bit(name):
    x = TREES[name]
    y = jax.tree.map(lambda x: -0.5 * x, x)
    theirs = oracle(jax.jit(lambda x, y: every(CALLS, optax.tree, x, y)), x, y)
    # Where several dtypes meet, strict promotion raises, in these as in any operation.
    mode = "standard" if name in MEETING else "strict"
    with jax.numpy_dtype_promotion(mode):
        ours = jax.jit(lambda x, y: every(CALLS, tree, x, y))(x, y)
    for call in CALLS:
        same(ours[call], theirs[call])


def test_powers_of_norms_are_those_of_their_formula():
    for x in (
        np.array([1.5, -2.0, 0.5], "float32"),
        np.array([3 + 4j, -1j], "complex64"),
    ):
        for order in range(1, 5):
            zero = 0 * np.abs(x)
            found = tree.update_moment_per_elem_norm(x, zero, 0.75, order)
            wanted = 0.25 * (np.abs(x) if np.iscomplexobj(x) else x) ** order
            # A root, a power and a product.
            np.testing.assert_allclose(found, wanted, rtol=1e-6)


REDUCTIONS = {
    "sum": lambda t, x: t.sum(x),
    "sum in pairs": lambda t, x: t.sum(x, associative_reduction=True),
    "max": lambda t, x: t.max(x),
    "min": lambda t, x: t.min(x),
    "norm": lambda t, x: t.norm(x),
    "squared norm": lambda t, x: t.norm(x, squared=True),
    "sum of sizes": lambda t, x: t.norm(x, ord=1),
    "largest": lambda t, x: t.norm(x, ord="inf"),
    "squared largest": lambda t, x: t.norm(x, jnp.inf, squared=True),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", [*EXACT, "numbers"])
def test_reductions_are_optax_s_bit_for_bit(name):
    x = TREES[name]
    theirs = oracle(jax.jit(lambda x: every(REDUCTIONS, optax.tree, x)), x)
    same(jax.jit(lambda x: every(REDUCTIONS, tree, x))(x), theirs)


def test_reductions_keep_sixty_four_bits(x64):
    x = [draw(37, 9, dtype=np.float64), draw(4), draw(3, dtype=np.float64)]
    theirs = oracle(jax.jit(lambda x: every(REDUCTIONS, optax.tree, x)), x)
    assert {v.dtype for v in theirs.values()} == {jnp.dtype("float64")}
    same(jax.jit(lambda x: every(REDUCTIONS, tree, x))(x), theirs)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", [*EXACT, "numbers", "integers"])
def test_vdot_is_optax_s(name):
    x = TREES[name]
    y = jax.tree.map(lambda x: x + x, x)
    with jax.numpy_dtype_promotion("standard"):
        theirs = jax.jit(optax.tree.vdot)(x, y)
    ours = jax.jit(tree.vdot)(x, y)
    assert ours.dtype == theirs.dtype and not ours.weak_type
    # Optax adds in the order of a matrix product: sums of up to 5,000 positive terms
    # may differ by as many roundings, and do by a few.
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize("name", ["empty", "nothing"])
def test_empty_trees_have_the_sums_and_extremes_of_nothing(name):
    x = TREES[name]
    assert tree.sum(x) == tree.vdot(x, x) == tree.size(x) == 0
    assert (tree.max(x), tree.min(x)) == (-jnp.inf, jnp.inf)
    assert tree.allclose(x, x) is True
    for order in None, 1, 2, "inf", jnp.inf:  # Optax: -inf for the last two
        assert tree.norm(x, order) == 0 and tree.norm(x, order).dtype == jnp.float32
    assert tree.max([jnp.zeros((0, 3))]) == -jnp.inf


@pytest.mark.parametrize("ord", ["fro", 3, 0, -jnp.inf])
def test_an_unknown_norm_is_refused(ord):
    with pytest.raises(ValueError, match="`ord` is .*, expected None, 1, 2"):
        tree.norm([draw(3)], ord)


# Values whose squares leave float16, or float32.
EXTREMES = [
    (jnp.float16, 300.0),
    (jnp.float16, 6e4),
    (jnp.float16, 6e-8),
    (jnp.bfloat16, 1.0),
    (jnp.bfloat16, 1e30),
    (jnp.bfloat16, 1e-30),
    (jnp.bfloat16, 3e38),
    (jnp.bfloat16, 0.0),
]


@pytest.mark.few(2)
@pytest.mark.parametrize("dtype, value", EXTREMES, ids=repr)
@pytest.mark.parametrize(
    "wrap", [lambda f: f, jax.jit, jax.vmap], ids=["eager", "jit", "vmap"]
)
def test_norms_of_narrow_leaves_neither_overflow_nor_vanish(dtype, value, wrap):
    x = {"w": jnp.full((1, 2, 3), value, dtype), "b": jnp.full((1, 2), -value, dtype)}
    x["b"] = x["b"].at[:, 1].set(0)
    exact = np.sqrt(7) * float(x["w"][0, 0, 0])
    found = jnp.ravel(wrap(tree.norm)(x))[0]
    assert found.dtype == jnp.float32
    if exact < jnp.finfo(jnp.float32).max:
        # Seven squares, one or two divisions and a root: ten roundings of 6e-8.
        np.testing.assert_allclose(found, exact, rtol=6e-7)
    else:
        assert found == jnp.inf


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf])
def test_norms_show_what_is_not_finite(dtype, bad):
    x = [jnp.ones(3, dtype), jnp.array([1, bad, 0], dtype)]
    np.testing.assert_array_equal(tree.norm(x), abs(bad))


@pytest.mark.few(1)
@pytest.mark.parametrize("value", [1.0, 1e30, 1e-30])
def test_norms_of_narrow_leaves_have_their_derivative(value):
    x = [jnp.array([3 * value, 0], jnp.bfloat16), jnp.array([4 * value], jnp.bfloat16)]
    for slope, exact in zip(jax.grad(tree.norm)(x), ([0.6, 0], [0.8]), strict=True):
        # Rounded to bfloat16, of 8 bits; so are 3 and 4 times the value.
        np.testing.assert_allclose(slope.astype(float), exact, atol=2**-7)


def test_the_norm_has_derivative_zero_at_zero():
    for dtype in jnp.float32, jnp.bfloat16, jnp.complex64:
        slope = jax.jit(jax.grad(tree.norm))([jnp.zeros(3, dtype)])[0]
        np.testing.assert_array_equal(slope, jnp.zeros(3, dtype))  # Optax: NaN


def test_vdot_of_narrow_leaves_is_summed_in_float32():
    x = [jnp.full(3, 300, jnp.float16)]
    assert tree.vdot(x, x) == np.float32(270_000)  # Optax: inf
    x = [jnp.full(3, 100, jnp.int8)]
    assert tree.vdot(x, x) == 30_000  # Optax: 48


def test_norm_and_vdot_take_mixed_leaves_under_strict_promotion():
    x = [draw(3), draw(3, dtype=jnp.bfloat16), jnp.arange(3), 2.0, C]
    flat = np.concatenate([np.asarray(v, np.complex128).ravel() for v in x])
    # A dozen terms: as many roundings, with room.
    np.testing.assert_allclose(tree.norm(x), np.linalg.norm(flat), rtol=1e-6)
    np.testing.assert_allclose(tree.vdot(x, x), np.vdot(flat, flat), rtol=1e-6)
    assert jnp.result_type(tree.sum(x)) == jnp.result_type(tree.max(x)) == C.dtype


@pytest.mark.few(1)
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("spec", [("d",), (None, "d")])
@pytest.mark.parametrize("function", [tree.vdot, lambda x, y: tree.norm(x), tree.sub])
def test_sharded_leaves_are_not_gathered(function, spec, axis_type):
    mesh = jax.make_mesh((8,), ("d",), axis_types=(axis_type,))
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    x = {"w": draw(16, 8)}
    expected = jax.tree.leaves(function(x, x))[0]
    with jax.set_mesh(mesh):
        x = jax.device_put(x, sharding)
        program = jax.jit(function).lower(x, x).compile()
        assert "all-gather" not in str(program.as_text())
        found = jax.tree.leaves(program(x, x))[0]
    # 128 terms, added by eight devices in another order.
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("leaves", [1, 50])
def test_a_reduction_is_one_equation(reduction, leaves):
    x = [draw(i % 3 + 1) for i in range(leaves)]
    program = jax.make_jaxpr(lambda x: REDUCTIONS[reduction](tree, x))(x)
    assert len(program.eqns) <= 2  # the square of a largest element is another
    assert len(jax.make_jaxpr(tree.vdot)(x, x).eqns) == 1


@pytest.mark.slow
def test_leaves_without_numbers_are_passed_over():
    key = jax.random.key(0)
    x, y = {"w": draw(3), "f": F0, "k": key}, {"w": draw(3, seed=1), "f": F0, "k": key}
    only = {"w": x["w"]}, {"w": y["w"]}
    for f in tree.sum, tree.max, tree.min, tree.norm:
        assert f(x) == f(only[0])
    assert tree.vdot(x, y) == tree.vdot(*only)
    assert tree.dtype(x) == jnp.float32
    assert tree.allclose(x, x)
    for name in {*CALLS} - {"full_like"}:
        found, expected = CALLS[name](tree, x, y), CALLS[name](tree, *only)
        np.testing.assert_array_equal(found["w"], expected["w"])
        assert found["f"].dtype == jax.dtypes.float0
        assert jnp.issubdtype(found["k"].dtype, jax.dtypes.prng_key)


@pytest.mark.parametrize("f", [tree.norm, tree.sum, tree.max, tree.min])
def test_a_leaf_that_is_no_array_is_named(f):
    with pytest.raises(TypeError, match=r"the leaf at \['s'\] is a `str`, expected an"):
        f({"a": draw(2), "s": "text"})


def test_vdot_names_the_path_of_another_shape():
    with pytest.raises(
        ValueError, match=r"`tree_y` has shape \(\) at \['w'\], expected"
    ):
        tree.vdot({"w": draw(3)}, {"w": draw()})
    with pytest.raises(ValueError, match=r"only in `tree_y`: \['v'\]"):
        tree.vdot({"w": draw(3)}, {"v": draw(3)})


def test_none_stays_none():
    x, none = {"a": draw(2), "b": None}, {"a": None, "b": None}
    assert tree.add_scale(none, 0.5, x) == none
    assert tree.update_moment(none, x, 0.9, 2) == none
    assert tree.update_infinity_moment(none, x, 0.9, 1e-8) == none
    assert tree.cast_like(x, none)["a"] is x["a"]


def test_numbers_stay_numbers():
    assert tree.add({"a": 1.5}, {"a": 2}) == {"a": 3.5}
    assert tree.scale(3, [2]) == [6]
    assert tree.cast([1.5], jnp.bfloat16)[0].dtype == jnp.bfloat16


def test_a_moment_of_integers_is_corrected_as_a_float():
    found = tree.bias_correction([jnp.arange(3)], 0.5, 1)[0]  # Optax: NaN and inf
    np.testing.assert_array_equal(found, [0.0, 2.0, 4.0])


@pytest.mark.parametrize("x", [TREES[k] for k in TREES], ids=list(TREES))
@pytest.mark.parametrize("handler", [None, "promote", "highest", "lowest"])
def test_the_dtype_is_optax_s(x, handler):
    try:
        expected = oracle(optax.tree.dtype, x, handler)
    except ValueError:
        with pytest.raises(ValueError, match="dtype"):
            tree.dtype(x, handler)
    else:
        assert tree.dtype(x, handler) == expected


def test_an_odd_dtype_is_named():
    odd = {"a": draw(2), "b": draw(2, dtype=jnp.float16), "n": None}
    with pytest.raises(
        ValueError, match=r"\['b'\] is of dtype float16, expected float32"
    ):
        tree.dtype(odd)
    odd["a"] = odd["a"].astype(jnp.bfloat16)
    with pytest.raises(ValueError, match="neither .* bfloat16 and float16 can"):
        tree.dtype(odd, "highest")
    with pytest.raises(ValueError, match="`mixed_dtype_handler` is 'most', expected"):
        tree.dtype({}, "most")


@pytest.mark.few(1)
@pytest.mark.parametrize("name", [x for x in TREES if x != "integers"])
def test_size_and_closeness_are_optax_s(name):
    x = TREES[name]
    near = jax.tree.map(lambda x: x * (1 + 3e-6), x)
    far = jax.tree.map(lambda x: x + 1, x)
    assert tree.size(x) == optax.tree.size(x)
    for other, rtol in (x, 1e-5), (near, 1e-5), (far, 1e-5), (near, 1e-8):
        expected = oracle(optax.tree.allclose, x, other, rtol)
        assert tree.allclose(x, other, rtol) == expected


def test_abstract_arrays_have_sizes_dtypes_and_likenesses():
    x = {"w": jax.ShapeDtypeStruct((3, 2), jnp.float16)}
    assert tree.size(x) == 6
    assert tree.dtype(x) == jnp.float16
    assert tree.zeros_like(x)["w"].shape == (3, 2)
    assert tree.random_like(jax.random.key(0), x)["w"].dtype == jnp.float16
    abstract = jax.eval_shape(lambda x: (tree.norm(x), tree.scale(0.5, x)), x)
    assert abstract[1]["w"].shape == (3, 2)


SAMPLERS = [jax.random.normal, jax.random.uniform, jax.random.rademacher]


@pytest.mark.thinned
@pytest.mark.parametrize("name", ["dict", "module", "none", "bfloat16", "empty"])
@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [None, jnp.float32])
def test_random_trees_are_optax_s_bit_for_bit(name, sampler, dtype):
    x, key = TREES[name], jax.random.key(7)
    ours = tree.random_like(key, x, sampler, dtype)
    same(ours, optax.tree.random_like(key, x, sampler, dtype))
    keys = tree.unwrap_random_key_data(tree.split_key_like(key, x))
    theirs = optax.tree.split_key_like(key, x)
    same(keys, optax.tree.unwrap_random_key_data(theirs))


def test_a_plain_function_is_a_sampler():
    found = tree.random_like(jax.random.key(0), [draw(3), 1.0], lambda k, s, d: (s, d))
    assert found == [((3,), jnp.float32), ((), jnp.float32)]


@pytest.mark.parametrize("name", [x for x in dir(optax.tree) if x[0] != "_"])
def test_names_and_signatures_are_optax_s(name):
    theirs = inspect.signature(getattr(optax.tree, name)).parameters.values()
    ours = inspect.signature(getattr(tree, name)).parameters.values()
    assert [(p.name, p.kind, p.default) for p in ours] == [
        (p.name, p.kind, p.default) for p in theirs
    ]


def test_tree_utils_lists_the_same_functions():
    for name in [x for x in dir(optax.tree_utils) if x.startswith("tree_")]:
        assert getattr(tree_utils, name) is getattr(tree, name.removeprefix("tree_"))


OLD = {
    "tree_scalar_mul": operator.methodcaller("__call__", 0.5, [draw(3)]),
    "tree_add_scalar_mul": operator.methodcaller("__call__", [draw(3)], 2.0, [draw(3)]),
    "tree_l1_norm": operator.methodcaller("__call__", [draw(3)]),
    "tree_l2_norm": operator.methodcaller("__call__", [draw(3)], squared=True),
    "tree_linf_norm": operator.methodcaller("__call__", [draw(3)]),
}


@pytest.mark.parametrize("name", OLD)
def test_old_names_work_and_warn_as_optax_s_do(name):
    with pytest.warns(DeprecationWarning):
        theirs = getattr(optax.tree_utils, name)
    with pytest.warns(DeprecationWarning, match=f"`{name}` is deprecated"):
        ours = getattr(tree_utils, name)
    same(OLD[name](ours), OLD[name](theirs))
    assert [*inspect.signature(ours).parameters] == [
        *inspect.signature(theirs).parameters
    ]


def test_global_norm_is_the_norm_and_warns_as_optax_s_does():
    with pytest.warns(DeprecationWarning):
        theirs = optax.global_norm([draw(3)])
    with pytest.warns(DeprecationWarning, match="use `tree.norm`"):
        assert stepax.global_norm([draw(3)]) == theirs


def test_unknown_names_are_attribute_errors():
    with warnings.catch_warnings(), pytest.raises(AttributeError, match="tree_cube"):
        getattr(tree_utils, "tree_cube")  # noqa: B009  (type checkers know better)
