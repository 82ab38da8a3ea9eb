"""Reductions to a scalar take many small arrays of one dtype at once."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import stepax
from stepax._engine.arrays import joined


NUMBER = 40
REDUCTIONS = {
    "norm": stepax.tree.norm,
    "clip": lambda tree: stepax.clip_by_global_norm(0.5).update(tree, ()),
    "finite": lambda tree: stepax.apply_if_finite(stepax.sgd(0.1), 3).update(
        tree, stepax.apply_if_finite(stepax.sgd(0.1), 3).init(tree)
    ),
}


def arrays(dtype="float32", scale=1.0):
    """Small ones of several shapes, one without elements, and a large one."""
    rng = np.random.default_rng(0)
    shapes = [(), (0,), (3,), (2, 3), (1, 1, 5)]
    make = lambda shape: jnp.asarray(scale * rng.normal(size=shape), dtype)
    small = [make(shapes[i % len(shapes)]) for i in range(NUMBER)]
    return {"large": make((100, 100)), "small": small}


def sums(tree):
    """How many sums of squares a norm adds up."""
    return jax.jit(stepax.tree.norm).lower(tree).as_text().count("call @_squares")


def test_many_are_one():
    few, many = arrays(), arrays()
    few["small"] = few["small"][:4]
    assert (sums(few), sums(many)) == (5, 2)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_on_a_mesh_each_stays_where_it_is(kind):
    mesh = jax.make_mesh((8,), ("d",), axis_types=(kind,))
    place = NamedSharding(mesh, PartitionSpec("d"))
    tree = [jax.device_put(jnp.ones((8, 2)), place) for _ in range(NUMBER)]
    with jax.set_mesh(mesh):
        assert sums(tree) == NUMBER
        assert float(stepax.tree.norm(tree)) == pytest.approx((16 * NUMBER) ** 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("is_jitted", [False, True])
@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float16", "complex64", "float64"]
)
def test_equal_to_one_by_one(name, dtype, is_jitted, monkeypatch):
    f, found = REDUCTIONS[name], []
    with jax.enable_x64(True) if dtype == "float64" else contextlib.nullcontext():
        for few in (16, 10**6):
            jax.clear_caches()
            monkeypatch.setattr(joined, "_MANY", few)
            found.append((jax.jit(f) if is_jitted else f)(arrays(dtype)))
    assert jax.tree.structure(found[0]) == jax.tree.structure(found[1])
    for x, y in zip(*map(jax.tree.leaves, found), strict=True):
        assert x.dtype == y.dtype
        tolerance = max(float(jnp.finfo(x.dtype).eps), 1e-15) if x.ndim else 1e-6
        wide = np.complex128 if jnp.iscomplexobj(x) else np.float64
        x, y = np.asarray(x, wide), np.asarray(y, wide)
        np.testing.assert_allclose(x, y, rtol=4 * tolerance)


@pytest.mark.few(1)
@pytest.mark.parametrize("is_jitted", [False, True])
@pytest.mark.parametrize("make", [float, np.float32, jnp.float32, np.ones])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_leaves_of_any_kind(name, make, is_jitted):
    one = np.ones((2, 3), np.float32) if make is np.ones else make(0.5)
    tree = [one] * NUMBER
    f = jax.jit(REDUCTIONS[name]) if is_jitted else REDUCTIONS[name]
    expected = f(jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree))
    with jax.disable_jit(not is_jitted):
        found = f(tree)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for x, y in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(np.float64(x), np.float64(y), rtol=1e-6)


def test_leaves_of_several_dtypes():
    dtypes = ["float32", "bfloat16", "int32", "complex64", "bool", "float16"]
    tree = [jnp.ones((i % 3, 2), dtypes[i % len(dtypes)]) for i in range(120)]
    exact = sum(x.size for x in tree) ** 0.5
    assert float(stepax.tree.norm(tree)) == pytest.approx(exact, rel=1e-6)
    assert float(jax.jit(stepax.tree.norm)(tree)) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_norms_whose_squares_overflow(scale):
    tree = arrays(scale=scale)
    exact = np.sqrt(sum(np.sum(np.float64(x) ** 2) for x in jax.tree.leaves(tree)))
    assert float(stepax.tree.norm(tree)) == pytest.approx(exact, rel=1e-5)


@pytest.mark.few(1)
@pytest.mark.parametrize("at", ["large", "small"])
@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_one_bad_element_is_found(at, bad):
    tree = arrays()
    if at == "large":
        tree["large"] = tree["large"].at[3, 4].set(bad)
    else:
        tree["small"][7] = tree["small"][7].at[-1].set(bad)
    tx = stepax.apply_if_finite(stepax.sgd(0.1), 3)
    _, state = jax.jit(tx.update)(tree, tx.init(tree))
    assert not state.last_finite
    assert not np.isfinite(stepax.tree.norm(tree))


def test_the_derivative_of_a_norm():
    tree = arrays()
    slope = jax.grad(stepax.tree.norm)(tree)
    norm = stepax.tree.norm(tree)
    for x, dx in zip(*map(jax.tree.leaves, (tree, slope)), strict=True):
        np.testing.assert_allclose(dx, x / norm, rtol=1e-5)


def test_under_vmap():
    tree = jax.tree.map(lambda x: jnp.stack([x, 3 * x]), arrays())
    found = jax.vmap(stepax.tree.norm)(tree)
    np.testing.assert_allclose(found[1], 3 * found[0], rtol=1e-6)
