"""Packed trees: many arrays in one vector for each dtype."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import TREES, gradients, make, rows
from keywords import keywords
from runs import compare, traced

import stepax
from stepax._engine.arrays.joined import cut, join, split
from stepax.tree import pack, unpack


def _tree():
    key = jax.random.key(3)
    draw = lambda n, *shape: jax.random.normal(jax.random.fold_in(key, n), shape) + 0.5
    return {
        "first": {"kernel": draw(0, 4, 3), "bias": draw(1, 3)},
        "none": None,
        "second": {"kernel": draw(2, 3, 2), "bias": draw(3, 2)},
        "half": draw(4, 2, 2).astype(jnp.bfloat16),
        "scale": draw(5),
    }


def _close(x, y):
    np.testing.assert_allclose(
        np.asarray(x, np.float64), np.asarray(y, np.float64), rtol=2e-5, atol=1e-6
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("row", rows())
def test_a_packed_tree_is_updated_like_the_tree(row):
    p = _tree()
    packed = pack(p)
    gs = [gradients(p, i) for i in range(3)]
    tx = make(row)
    try:
        tx.init(packed)
    except TypeError as error:  # what codes or averages parts of an array
        assert "packed parameters" in str(error)
        return
    us, state = traced(tx, gs, p, **keywords(gs[0]))
    again = [pack(g, like=packed) for g in gs]
    vs, other = traced(tx, again, packed, **keywords(again[0]))
    assert jax.tree.structure(unpack(other)) == jax.tree.structure(state)
    compare(_close, us, unpack(vs))
    compare(_close, state, unpack(other))


@pytest.mark.parametrize("lead", [(), (2,), (3, 1)], ids=str)
@pytest.mark.parametrize("form", ["numpy", "jax", "shape"])
def test_vectors_may_have_leading_axes(form, lead):
    shapes = [(2, 3), (), (0,), (4,)]
    of_shape = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype)
    make = {"numpy": np.asarray, "jax": jnp.asarray, "shape": of_shape}[form]
    whole = np.arange(math.prod(lead) * 11, dtype=np.float32).reshape(*lead, 11)
    parts = np.split(whole, [6, 7, 7], -1)
    parts = [x.reshape((*lead, *y)) for x, y in zip(parts, shapes, strict=True)]
    vector, arrays = make(whole), list(map(make, parts))
    found = [join(arrays, len(lead)), cut(vector, 5, 8), *split(vector, shapes)]
    for x, y in zip(found, [whole, whole[..., 5:8], *parts], strict=True):
        assert type(x) is type(vector) and (x.shape, x.dtype) == (y.shape, y.dtype)
        assert form == "shape" or np.array_equal(x, y)


@pytest.mark.parametrize("tree", TREES)
def test_a_tree_is_packed_and_unpacked(tree):
    arrays = eqx.filter(TREES[tree](), eqx.is_array_like)
    again = unpack(pack(arrays))
    assert jax.tree.structure(again) == jax.tree.structure(arrays)
    pairs = zip(jax.tree.leaves(again), jax.tree.leaves(arrays), strict=True)
    for x, y in pairs:
        assert x.dtype == jnp.asarray(y).dtype
        np.testing.assert_array_equal(x, y)


def test_there_is_one_vector_for_each_dtype():
    packed = pack(_tree())
    vectors = {jax.tree_util.keystr(k): x for k, x in jax.tree.leaves_with_path(packed)}
    assert {k: x.shape for k, x in vectors.items()} == {
        ".float32": (24,),
        ".bfloat16": (4,),
    }
    kernel = _tree()["first"]["kernel"]
    np.testing.assert_array_equal(packed.vectors[0][:12], kernel.ravel())


def test_empty_arrays_take_no_room():
    tree = {"a": jnp.ones(2), "b": jnp.ones((2, 2)), "z": jnp.zeros((0, 3))}
    packed, tx = pack(tree), stepax.adamw(0.1, mask={"a": False, "**": True})
    u, _ = tx.update(tree, tx.init(tree), tree)
    v, _ = tx.update(packed, tx.init(packed), packed)
    compare(_close, u, unpack(v))


def _loss(tree):
    return sum(jnp.sum(jnp.sin(x.astype("float32"))) for x in jax.tree.leaves(tree))


def test_gradients_are_joined_by_one_operation():
    tree = {str(i): jnp.full(4, i / 10) for i in range(9)}
    packed = pack(tree)
    gradient = jax.grad(lambda p: _loss(unpack(p)))
    compare(_close, unpack(gradient(packed)), jax.grad(_loss)(tree))
    text = str(jax.make_jaxpr(gradient)(packed))
    assert text.count(" concatenate[") == 1
    assert " pad[" not in text
    assert "dynamic_update_slice" not in text


@pytest.mark.slow
def test_derivatives_of_all_kinds():
    tree = {"w": jnp.arange(6.0).reshape(2, 3), "b": jnp.ones(2), "s": jnp.float32(2)}
    packed = pack(tree)
    f = lambda p: _loss(unpack(p))
    second = jax.hessian(f)(packed).vectors[0].vectors[0]
    np.testing.assert_allclose(second, jnp.diag(-jnp.sin(packed.vectors[0])), rtol=1e-6)
    _, tangent = jax.jvp(f, (packed,), (packed,))
    _, expected = jax.jvp(_loss, (tree,), (tree,))
    np.testing.assert_allclose(tangent, expected, rtol=1e-6)
    two = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), packed)
    assert {x.shape[0] for x in jax.tree.leaves(jax.vmap(unpack)(two))} == {2}
    compare(_close, unpack(two), jax.vmap(unpack)(two))


def _equations(tx, p):
    step = lambda g, s, p: tx.update(g, s, p)
    return str(jax.make_jaxpr(step)(p, tx.init(p), p))


def test_elementwise_rules_take_whole_vectors():
    tree = {str(i): jnp.ones((2, 2)) for i in range(50)}
    parts = stepax.clip(1.0), stepax.ema(0.9), stepax.trace(0.9)
    last = stepax.keep_params_nonnegative()  # whose formula has one element, too
    tx = stepax.chain(*parts, stepax.adamw(1e-3), last)
    text = _equations(tx, pack(tree))
    assert text == _equations(
        tx, stepax.tree.Packed([jnp.ones(200)], pack(tree).layout)
    )
    assert "slice[" not in text
    assert "concatenate[" not in text


MASKS = {
    "function": lambda p: jax.tree.map(lambda x: x.ndim > 1, p),
    "path": {"first/**": True, "**": False},
    "tree": {
        "first": {"kernel": True, "bias": False},
        "none": None,
        "second": {"kernel": False, "bias": True},
        "half": True,
        "scale": False,
    },
}


def _labels(mask):
    if isinstance(mask, dict):  # the order of its patterns counts
        return {k: _labels(x) for k, x in mask.items()}
    return {True: "a", False: "b", None: None}[mask]


@pytest.mark.slow
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_masks_and_labels_mean_the_arrays(mask):
    p = _tree()
    packed = pack(p)
    labels = _labels(mask(p) if callable(mask) else mask)
    inner = stepax.chain(stepax.masked(stepax.adam(0.1), mask), stepax.lamb(0.1))
    for tx in (
        stepax.adamw(0.1, mask=mask),
        stepax.partition({"a": inner, "b": stepax.lion(0.1)}, labels),
        stepax.inject_hyperparams(stepax.adamw)(0.1, mask=mask),
        stepax.chain(stepax.freeze(mask), stepax.adafactor(0.1)),
    ):
        u, state = tx.update(p, tx.init(p), p)
        v, other = tx.update(packed, tx.init(packed), packed)
        assert jax.tree.structure(unpack(other)) == jax.tree.structure(state)
        compare(_close, (u, state), unpack((v, other)))


def test_what_is_no_rule_updates_a_packed_tree_like_the_tree():
    double = stepax.GradientTransformation(
        lambda params: stepax.EmptyState(),
        lambda u, state, params=None: (jax.tree.map(lambda x: x + x, u), state),
    )
    mask = {"*/kernel": True, "**": False}
    tx = stepax.chain(
        double, stepax.masked(double, mask), stepax.trace(0.9), stepax.freeze(mask)
    )
    p = _tree()
    packed = pack(p)
    u, state = tx.update(p, tx.init(p), p)
    v, other = tx.update(packed, tx.init(packed), packed)
    compare(_close, (u, state), unpack((v, other)))
    assert u["scale"] == 2 * p["scale"]


def test_arrays_of_one_label_lie_side_by_side():
    tree = {str(i): {"kernel": jnp.ones((2, 2)), "a": jnp.ones(2)} for i in range(9)}
    mask = {"*/kernel": True, "**": False}
    tx = stepax.adamw(1e-3, mask=mask)
    slices = lambda p: _equations(tx, p).count("slice[")
    alike = pack(tree, by=mask)
    assert slices(alike) == slices(pack(tree)) == 8  # g, p, mu, nu, in two parts each
    assert slices(pack(tree, by=lambda p: {k: k for k in p})) > 60
    compare(_close, unpack(alike), tree)


def test_a_state_goes_from_one_layout_to_the_other():
    p = _tree()
    packed = pack(p)
    tx = stepax.chain(stepax.trace(0.9), stepax.adamw(0.1, mask=MASKS["path"]))
    _, state = tx.update(p, tx.init(p), p)
    moved = pack(state, like=jax.eval_shape(tx.init, packed))
    _, other = tx.update(packed, tx.init(packed), packed)
    assert jax.tree.structure(moved) == jax.tree.structure(other)
    compare(_close, moved, other)


def test_gradients_of_integers_pass():
    p = pack({"w": jnp.ones(2), "n": jnp.arange(3), "m": jnp.arange(2)})
    g = jax.grad(lambda p: jnp.sum(unpack(p)["w"]), allow_int=True)(p)
    tx = stepax.adamw(0.1, mask={"m": True, "**": False})
    u, _ = tx.update(g, tx.init(p), p)
    moved = unpack(stepax.apply_updates(p, u))
    np.testing.assert_array_equal(moved["n"], jnp.arange(3))
    assert (moved["w"] < 1).all()


@pytest.mark.parametrize("leaf", [jnp.tanh, jax.random.key(0), "name"])
def test_what_is_no_array_of_numbers_is_refused(leaf):
    with pytest.raises(TypeError, match=r"\['net'\]\['odd'\].*separate other leaves"):
        pack({"net": {"odd": leaf, "w": jnp.ones(2)}})


def test_like_must_have_the_structure_and_the_shapes():
    packed = pack({"w": jnp.ones((2, 3)), "b": jnp.ones(3)})
    with pytest.raises(ValueError, match=r"only in `like`: \['b'\]"):
        pack({"w": jnp.ones((2, 3))}, like=packed)
    with pytest.raises(ValueError, match=r"\['w'\] has shape \(3, 2\).* has \(2, 3\)"):
        pack({"w": jnp.ones((3, 2)), "b": jnp.ones(3)}, like=packed)
    with pytest.raises(ValueError, match=r"only in `like`"):
        pack(stepax.sgd(0.1).init({}), like=stepax.adam(0.1).init(packed))


def test_packed_and_other_trees_do_not_mix():
    p = {"w": jnp.ones((2, 3)), "b": jnp.ones(3)}
    packed, tx = pack(p), stepax.adamw(0.1)
    with pytest.raises(TypeError, match=r"`mu` is not: pack .*stepax\.tree\.pack"):
        tx.update(packed, tx.init(p), packed)
    with pytest.raises(TypeError, match=r"`params` is not: pack"):
        tx.update(packed, tx.init(packed), p)
    with pytest.raises(
        ValueError, match="only one of them is packed.*stepax.tree.unpack"
    ):
        tx.update(p, tx.init(packed), p)
    other = pack(p, by={"b": 0, "w": 1})
    with pytest.raises(
        ValueError, match=r"`params` is packed differently .*like=packed"
    ):
        tx.update(packed, tx.init(packed), other)


def test_described_by_array():
    tx = stepax.adamw(0.1, mask=MASKS["path"])
    assert str(stepax.describe(tx, pack(_tree()))) == str(stepax.describe(tx, _tree()))
