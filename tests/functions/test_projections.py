"""Projections give a point of the set, and no other is nearer."""

import functools as ft

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays
from loops import each

from stepax import projections as ours


FLOATS = st.floats(-4, 4, width=32)
VECTORS = arrays(np.float32, st.sampled_from([1, 2, 6]), elements=FLOATS)
CHECK = settings(derandomize=True, max_examples=40, deadline=None, database=None)

# Sums of up to 14 numbers of up to 28, each rounded to 2^-24 of its size.
NEAR = 1e-5


def simplex(x, scale):
    """By sorting, in float64: Duchi et al., 2008, figure 1."""
    u = np.sort(x)[::-1]
    over = (np.cumsum(u) - scale) / np.arange(1, len(u) + 1)
    tau = over[np.nonzero(u > over)[0][-1]] if scale > 0 else u[0]
    return np.maximum(x - tau, 0)


def l1_ball(x, scale):
    inside = np.abs(x).sum() <= scale
    return x if inside else np.sign(x) * simplex(np.abs(x), scale)


def l1_sphere(x, scale):
    return np.where(x < 0, -1, 1) * simplex(np.abs(x), scale)


def l2_sphere(x, scale):
    x = x if x.any() else np.ones_like(x)
    return scale * x / np.linalg.norm(x)


def l2_ball(x, scale):
    return x if np.linalg.norm(x) <= scale else l2_sphere(x, scale)


BY_SCALE = {
    "projection_simplex": simplex,
    "projection_l1_ball": l1_ball,
    "projection_l1_sphere": l1_sphere,
    "projection_l2_ball": l2_ball,
    "projection_l2_sphere": l2_sphere,
    "projection_linf_ball": lambda x, scale: np.clip(x, -scale, scale),
    "projection_hypercube": lambda x, scale: np.clip(x, 0, scale),
}
PROJECTIONS = BY_SCALE | {"projection_non_negative": lambda x: np.maximum(x, 0)}


def split(x):
    """A vector as a tree, with a leaf that is nothing."""
    return {"none": None, "a": jnp.asarray(x[:2]), "b": (jnp.asarray(x[2:]),)}


def joined(tree):
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_SCALE)
@CHECK
@given(x=VECTORS, scale=st.sampled_from([0.0, 0.5, 1.0, 3.0]))
def test_of_a_given_size_is_the_formula_in_float64(name, x, scale):
    wanted = BY_SCALE[name](x.astype(np.float64), scale)
    found = getattr(ours, name)(split(x), scale)
    np.testing.assert_allclose(joined(found), wanted, atol=NEAR, rtol=NEAR)


@pytest.mark.slow
@CHECK
@given(x=VECTORS, y=VECTORS, b=FLOATS)
def test_half_spaces_and_lines_are_the_formulas_in_float64(x, y, b):
    n = min(len(x), len(y))
    x, a = x[:n], np.round(y[:n])  # a short `a` would magnify the rounding of b
    wide = x.astype(np.float64)
    unit = a / max(a @ a, 1)
    beyond = (a @ wide - b) if a.any() else 0.0
    wanted = {
        "projection_vector": (a @ wide) * unit,
        "projection_hyperplane": wide - beyond * unit,
        "projection_halfspace": wide - max(beyond, 0) * unit,
    }
    for name, y in wanted.items():
        more = () if name == "projection_vector" else (b,)
        found = getattr(ours, name)(split(x), split(a), *more)
        np.testing.assert_allclose(joined(found), y, atol=3 * NEAR, rtol=NEAR)


@pytest.mark.slow
@CHECK
@given(x=arrays(np.float32, 6, elements=FLOATS), scale=st.sampled_from([0.5, 2.0]))
def test_no_point_of_a_convex_set_is_nearer(x, scale):
    """⟨x - y, z - y⟩ <= 0 for all z of the set, of which we take projections."""
    others = np.random.default_rng(0).normal(size=(20, 6)) * 3
    for name in set(BY_SCALE) - {"projection_l1_sphere", "projection_l2_sphere"}:
        y = joined(getattr(ours, name)(split(x), scale)).astype(np.float64)
        zs = np.stack([BY_SCALE[name](z, scale) for z in others])
        assert ((zs - y) @ (x - y)).max() < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_SCALE)
def test_agrees_with_optax(name):
    x = split(np.random.default_rng(1).normal(size=9).astype(np.float32))
    if name == "projection_hypercube":
        x = x["a"]  # Optax's takes no tree
    theirs = ft.partial(getattr(optax.projections, name), scale=0.75)
    with jax.numpy_dtype_promotion("standard"):
        wanted = theirs(x)
    found = getattr(ours, name)(x, 0.75)
    # Each sums in its own order.
    np.testing.assert_allclose(joined(found), joined(wanted), rtol=1e-5, atol=2e-7)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROJECTIONS)
def test_ends_are_right(name):
    project = getattr(ours, name)
    assert project({}) == {}
    assert project({"none": None, "key": jax.random.key(0), "x": 0.5})["none"] is None
    assert project(jnp.zeros((0, 3))).shape == (0, 3)
    for x in jnp.zeros(3), jnp.array([0.2, 0.2, 0.6]), jnp.array([9.0, 9.0, -9.0]):
        jacobian = jax.jacobian(project)(x)
        assert np.isfinite(jacobian).all()


@pytest.mark.slow
def test_the_derivative_is_that_of_the_optimality_conditions():
    jacobian = jax.jacobian(ours.projection_simplex)(jnp.array([0.5, 0.7, -3.0]))
    half = [[0.5, -0.5, 0.0], [-0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]
    np.testing.assert_allclose(jacobian, half, atol=1e-7)
    in_scale = jax.jacobian(ours.projection_simplex, 1)(jnp.ones(4), 1.0)
    np.testing.assert_allclose(in_scale, np.full(4, 0.25))


# On an axis a bound is met exactly, which must not halve a derivative of the sphere's.
POINTS = [[3.0], [0.0, 2.0], [-2.0, 1.5, 0.75]]
SPHERE = "projection_l2_sphere"


@ft.cache
def jacobian(name):
    return jax.jit(jax.jacobian(lambda x: getattr(ours, name)(x, 1.0)))


@each((k, x) for k in BY_SCALE for x in (POINTS if k == SPHERE else POINTS[2:]))
def test_derivatives_are_those_of_the_formulas(name, x):
    x, h = np.array(x), 1e-6
    wanted = [
        (BY_SCALE[name](x + h * e, 1.0) - BY_SCALE[name](x - h * e, 1.0)) / (2 * h)
        for e in np.eye(x.size)
    ]
    found = jacobian(name)(jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(found, np.transpose(wanted), atol=1e-6)


@pytest.mark.few(3)
@pytest.mark.parametrize("name", PROJECTIONS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_each_leaf_keeps_its_dtype(name, dtype):
    tree = {"x": jnp.array([3.0, -4.0], dtype), "y": jnp.array([0.5], jnp.float32)}
    found = jax.jit(getattr(ours, name))(tree)
    assert found["x"].dtype == dtype and found["y"].dtype == jnp.float32
    wanted = PROJECTIONS[name](
        np.array([3.0, -4.0, 0.5]), *([1.0] if name in BY_SCALE else [])
    )
    np.testing.assert_allclose(
        np.append(np.float32(found["x"]), found["y"]), wanted, rtol=1e-2, atol=1e-3
    )


def test_large_numbers_do_not_hide_the_sum():
    x = jnp.array([1e8, 1e8, 1.0])
    np.testing.assert_array_equal(ours.projection_simplex(x), [0.5, 0.5, 0.0])


def test_a_norm_that_float32_cannot_square_is_scaled_to():
    found = ours.projection_l2_sphere(jnp.array([3e-30, 4e-30]), 5.0)
    np.testing.assert_allclose(found, [3.0, 4.0], rtol=1e-6)
    found = ours.projection_vector(jnp.array([1.0, 2.0]), jnp.array([0.0, 1e-30]))
    np.testing.assert_allclose(found, [0.0, 2.0])


@pytest.mark.slow
def test_nan_stays_nan():
    x = jnp.array([jnp.nan, 1.0])
    for name in PROJECTIONS:
        assert jnp.isnan(getattr(ours, name)(x)).any()


@pytest.mark.slow
def test_complex_numbers_are_projected_by_their_size():
    x = jnp.array([3.0 + 4.0j, 0.3j, 0.0])
    found = ours.projection_linf_ball(x, 1.0)
    np.testing.assert_allclose(found, [0.6 + 0.8j, 0.3j, 0.0], rtol=1e-6)
    np.testing.assert_allclose(ours.projection_l1_ball(x, 1.0), [0.6 + 0.8j, 0, 0])
    assert jnp.linalg.norm(ours.projection_l2_ball(x, 1.0)) == pytest.approx(1)
    a = jnp.array([1.0j, 2.0, 1.0])
    rest = x - ours.projection_vector(x, a)
    assert abs(np.vdot(a, rest)) < 1e-6
    b = 1.0 + 2.0j
    assert np.vdot(a, ours.projection_hyperplane(x, a, b)) == pytest.approx(b, rel=1e-6)
    inside = ours.projection_halfspace(x, a, 0.5)
    assert np.vdot(a, inside).real == pytest.approx(0.5)


def test_bounds_are_numbers_trees_or_nothing():
    tree = {"a": jnp.array([[-2.0, 0.5, 3.0]]), "b": 5.0}
    found = ours.projection_box(tree, {"a": jnp.zeros(3), "b": None}, 1.0)
    np.testing.assert_array_equal(found["a"], [[0.0, 0.5, 1.0]])
    assert found["b"] == 1
    found = ours.projection_hypercube(tree, {"a": 2.0, "b": 3.0})
    assert found["a"].max() == 2 and found["b"] == 3
    np.testing.assert_array_equal(ours.projection_box(tree, None, None)["a"], tree["a"])


def test_a_sharded_tree_is_projected_where_it_is():
    mesh = jax.make_mesh((4,), ("x",))
    spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    x = jnp.linspace(-1.0, 1.0, 8)
    found = jax.jit(ours.projection_simplex)(jax.device_put(x, spec))
    assert found.sharding.is_equivalent_to(spec, 1)
    np.testing.assert_allclose(found, simplex(np.float64(x), 1), atol=1e-6)


WRONG = {
    "`scale` is -1": lambda x: ours.projection_l2_ball(x, -1.0),
    "`scale` is -2": lambda x: ours.projection_hypercube(x, -2),
    r"`scale` has shape \(2,\)": lambda x: ours.projection_simplex(x, np.ones(2)),
    "`lower` is 2, expected at most `upper`, 1": lambda x: ours.projection_box(x, 2, 1),
    r"`lower` is \[0. 1. 0.\], expected at": lambda x: ours.projection_box(
        x, jnp.eye(3)[1], jnp.eye(3)[0]
    ),
    "`lower` is nan, expected at": lambda x: ours.projection_box(x, np.nan, 1.0),
    "`scale` is -3": lambda x: ours.projection_simplex(x, jnp.float32(-3)),
    r"`b` has shape \(3,\)": lambda x: ours.projection_halfspace(x, x, jnp.ones(3)),
    r"`lower` has shape \(2,\) at \['w'\], expected \(3,\)": lambda x: (
        ours.projection_box(x, {"w": jnp.zeros(2)}, None)
    ),
    r"`upper` and `tree` differ in structure; only in `upper`: \['v'\]": lambda x: (
        ours.projection_box(x, None, {"v": jnp.zeros(3)})
    ),
    r"`a` has shape \(2,\) at \['w'\], expected \(3,\) as in `x`": lambda x: (
        ours.projection_vector(x, {"w": jnp.ones(2)})
    ),
    r"the leaf at \['w'\] is complex": lambda x: ours.projection_simplex(
        {"w": jnp.ones(3, jnp.complex64)}
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_calls_say_what_and_where(message):
    with pytest.raises(ValueError, match=message):
        WRONG[message]({"w": jnp.ones(3)})
