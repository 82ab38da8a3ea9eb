"""Proximal operators give the minimizer of g(z) + |z - x|² / (2 s), for any tree."""

import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from jax.test_util import check_grads

import stepax
from stepax import projections
from stepax.solve import prox


MATRIX = np.random.default_rng(3).normal(size=(4, 6))
# Each with a weight or a size, so that derivatives can be taken.
MADE: dict[str, Any] = {
    "l1": prox.l1,
    "elastic_net": lambda w: prox.elastic_net(w, 2 * w),
    "l2_squared": prox.l2_squared,
    "group_l2": prox.group_l2,
    "group_l2 of columns": lambda w: prox.group_l2(w, axis=0),
    "group_l2 of leaves": lambda w: prox.group_l2(w, axis=None),
    "nuclear": prox.nuclear,
    "total_variation": prox.total_variation,
    "box": lambda w: prox.box(-w, w),
    "simplex": prox.simplex,
    "l1_ball": prox.l1_ball,
    "l2_ball": prox.l2_ball,
}
EVERY = {name: make(0.7) for name, make in MADE.items()}
EVERY |= {
    "non_negative": prox.non_negative(),
    "from_projection": prox.from_projection(projections.projection_l1_sphere),
    "weights of elements": prox.l1({"a": 0.3, "b": jnp.linspace(0, 1, 6)}),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", [x for x in EVERY if x != "from_projection"])
def test_no_point_has_a_lower_cost(x64, name):
    """Neither nearby points, nor the point itself, up to 1e-12 of rounding."""
    g, rng = EVERY[name], np.random.default_rng(0)
    x = {"a": jnp.asarray(2 * MATRIX[:2]), "b": jnp.asarray(2 * MATRIX[2:])}

    @jax.jit
    def cost(z):
        squares = [jnp.sum((z[k] - x[k]) ** 2) for k in x]
        return 0.8 * g.value(z) + sum(squares) / 2

    step = jax.jit(g)
    z = step(x, 0.8)
    least = cost(z)
    assert np.isfinite(least)
    for size in 1e-1, 1e-1, 1e-1, 1e-3, 1e-3, 1e-3:
        other = {k: z[k] + size * rng.normal(size=z[k].shape) for k in z}
        # A point of the set, if it is one.
        other = step(other, 1.0) if g.value(z) == 0 else other
        assert cost(other) >= least - 1e-12


@pytest.mark.slow
def test_what_is_no_number_is_left_alone():
    x = {"a": jnp.array([3.0]), "none": None, "name": "x", "count": 3, "f": jnp.sin}
    for name in set(EVERY) - {"nuclear", "weights of elements"}:
        z = EVERY[name](x, 0.5)
        assert z.pop("a").shape == (1,), name
        assert z == {k: y for k, y in x.items() if k != "a"}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", MADE)
def test_derivatives_are_those_of_differences(x64, name):
    f = jax.jit(lambda x, weight: MADE[name](weight)(x, 0.9))
    shapes = (MATRIX, MATRIX.T, MATRIX[:, :4])
    for x in shapes if name == "nuclear" else shapes[:1]:
        check_grads(f, (jnp.asarray(2 * x), 0.6), order=1, atol=1e-6, rtol=1e-6)


@pytest.mark.few(1)
@pytest.mark.parametrize("n", [2, 20])
def test_total_variation_is_that_of_its_dual(n, x64):
    """z = x - D'u with |u| <= t, where u minimizes |x - D'u|."""
    rng = np.random.default_rng(1)
    z_of = jax.jit(lambda x, t: prox.total_variation(t)(x, 1.0))
    for t in 0.1, 1.0, 20.0:
        x = rng.normal(size=n).cumsum()
        d = np.diff(np.eye(n), axis=0)
        u = scipy.optimize.lsq_linear(d.T, x, (-t, t), tol=1e-15, max_iter=999).x
        z = z_of(jnp.asarray(x), t)
        np.testing.assert_allclose(z, x - d.T @ u, atol=1e-9)


def test_total_variation_of_equal_elements_or_one_leaves_them(x64):
    flat = jnp.array([1.0, 1.0, 2.0])  # equal elements, and no weight
    z_of = jax.jit(lambda x, t: prox.total_variation(t)(x, 1.0))
    np.testing.assert_allclose(z_of(flat, 0.0), flat)
    assert z_of(jnp.ones(1), 1.0) == 1


@pytest.mark.few(1)
@pytest.mark.parametrize("shape", [(3, 3), (3, 2)])
def test_equal_singular_values_have_derivatives(shape, x64):
    slope = jax.jit(jax.jacobian(lambda x: prox.nuclear(1.0)(x, 1.0)))
    assert np.isfinite(slope(2 * jnp.eye(*shape))).all()
    assert not slope(jnp.zeros(shape)).any()


def test_values_are_those_of_the_formulas():
    x = {"a": jnp.array([[3.0, -4.0], [0.0, 0.0]]), "b": jnp.array([1.0])}
    values = {
        prox.l1(2.0): 16.0,
        prox.elastic_net(1.0, 2.0): 8 + 26,
        prox.l2_squared({"a": 1.0, "b": 4.0}): 12.5 + 2,
        prox.group_l2(jnp.array([2.0]), axis=-1): 12.0,
        prox.group_l2(1.0, axis=None): 6.0,
        prox.simplex(0.0): np.inf,
        prox.non_negative(): np.inf,
        prox.l2_ball(5.1): 0.0,
        prox.l1_ball(7.9): np.inf,
        prox.box(-4.0, {"a": 3.0, "b": None}): 0.0,
    }
    matrices = {prox.nuclear(1.0): 5.0, prox.total_variation(1.0): 7.0}

    @jax.jit
    def found(x):
        return [*[g.value(x) for g in values], *[g.value(x["a"]) for g in matrices]]

    for (g, wanted), value in zip((values | matrices).items(), found(x), strict=True):
        assert value == pytest.approx(wanted), g


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "complex64"])
def test_each_leaf_keeps_its_dtype(dtype):
    """Computed in float32, and rounded once, to 2^-8 in bfloat16."""
    x = jnp.array([[3.0, -4.0], [0.5, 0.1]], dtype)
    wide = x if dtype == "complex64" else x.astype("float32")
    no_order = ("total_variation", "box", "simplex", "non_negative", "weights", "by")
    tried = {
        name: g
        for name, g in EVERY.items()
        if not (dtype == "complex64" and name.startswith(no_order) or "weights" in name)
    }
    points = jax.jit(lambda x: {name: g(x, 0.5) for name, g in tried.items()})
    found, wanted = points(x), points(wide)
    for name, z in found.items():
        assert z.dtype == dtype
        exact = np.asarray(wanted[name])
        np.testing.assert_allclose(np.asarray(z, exact.dtype), exact, rtol=8e-3)
    if dtype == "complex64":
        x = jnp.array([3.0 + 4.0j, 0.1j])
        np.testing.assert_allclose(prox.l1(1.0)(x, 2.5), [1.5 + 2j, 0], rtol=1e-6)
        with pytest.raises(ValueError, match="real numbers"):
            prox.total_variation(1.0)(x, 1.0)


def test_an_operator_is_a_tree_and_a_value():
    g = prox.elastic_net({"a": 0.1, "b": 0.2}, 0.3)
    assert jax.tree.leaves(g) == [0.1, 0.2, 0.3]
    assert repr(g) == "elastic_net({'a': 0.1, 'b': 0.2}, 0.3)"
    assert repr(prox.group_l2(0.1)) == "group_l2(0.1, -1)"
    assert repr(prox.box(None, 1.0)) == "box(None, 1.0)"
    for x in [*EVERY.values(), g]:
        again = pickle.loads(pickle.dumps(x))
        assert again == x and hash(again) == hash(x) and repr(again) == repr(x)
        assert x != prox.l1(0.123)
    found = jax.jit(lambda g, x: g(x, 1.0))(prox.l1(1.0), jnp.array([3.0, -0.5]))
    np.testing.assert_array_equal(found, [2.0, 0.0])
    rows = jax.vmap(lambda w: prox.l1(w)(jnp.array([3.0]), 1.0))(jnp.array([1.0, 2.0]))
    np.testing.assert_array_equal(rows, [[2.0], [1.0]])


WRONG_FUNCTION: Any = 3
WRONG: dict[str, tuple] = {
    "negative": (lambda: prox.l1(-1.0), ValueError, "`weight` of `prox.l1` is -1.0"),
    "negative in a tree": (
        lambda: prox.elastic_net(1.0, {"a": np.array([1, -2])}),
        ValueError,
        "`l2` of `prox.elastic_net` is [ 1 -2], expected at least 0",
    ),
    "NaN": (lambda: prox.l2_ball(np.nan), ValueError, "`radius` of `prox.l2_ball`"),
    "text": (lambda: prox.nuclear("x"), TypeError, "holds a `str`, expected real"),
    "no function": (
        lambda: prox.from_projection(WRONG_FUNCTION),
        TypeError,
        "`project` of `from_projection` is a `int`, expected a function",
    ),
    "shape": (
        lambda: prox.l1(jnp.ones(3))({"a": jnp.ones(2)}, 1.0),
        ValueError,
        "the weight of `l1` for ['a'] has shape (3,), expected a scalar, or an array "
        "that broadcasts to (2,)",
    ),
    "one for each group": (
        lambda: prox.group_l2(jnp.ones((3, 2)))(jnp.ones((3, 2)), 1.0),
        ValueError,
        "broadcasts to (3, 1)",
    ),
    "tree": (
        lambda: prox.l1({"b": 1.0})({"a": jnp.ones(2)}, 1.0),
        ValueError,
        "`weight of l1` and the parameters differ in structure; only in",
    ),
    "no axis": (
        lambda: prox.group_l2(1.0)({"a": jnp.ones(())}, 1.0),
        ValueError,
        "`group_l2(1.0, -1)` needs the axes (-1,), but the leaf at ['a'] has shape ()",
    ),
    "no matrix": (
        lambda: prox.nuclear(1.0).value(jnp.ones(2)),
        ValueError,
        "`nuclear(1.0)` needs the axes (-2, -1), but the leaf at the root has shape",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_calls_say_what_and_where(wrong):
    call, error, message = WRONG[wrong]
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value)


TREE = {"w": jnp.ones(3), "b": jnp.ones(())}
CROSSED = {
    "numbers": (1.0, 0.0),
    "a number and a tree": (1.0, {"w": 2.0, "b": 0.0}),
    "a tree and a number": ({"w": 0.0, "b": 2.0}, 1.0),
    "trees": ({"w": 0.0, "b": 2.0}, {"w": 1.0, "b": 1.0}),
    "arrays": ({"w": np.array([0.0, 2, 0]), "b": None}, {"w": np.ones(3), "b": 1.0}),
    "an array and a number": ({"w": np.array([0.0, 2, 0]), "b": 0.0}, 1.0),
}


@pytest.mark.parametrize("lower, upper", CROSSED.values(), ids=CROSSED)
def test_bounds_that_cross_are_refused(lower, upper):
    calls = [
        lambda: prox.box(lower, upper),
        lambda: prox.box(*jax.tree.map(jnp.asarray, (lower, upper))),
        lambda: projections.projection_box(TREE, lower, upper),
        lambda: stepax.lbfgsb(lower, upper).init(TREE),
        lambda: stepax.minimize(lambda p: 0.0, TREE, bounds=(lower, upper)),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="expected at most|cross"):
            call()
