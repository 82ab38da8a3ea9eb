"""`minimize(prox=...)`: minima of sums with nonsmooth functions, derivatives."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.datasets import load_diabetes
from sklearn.linear_model import ElasticNet, Lasso

import stepax
from stepax.solve import Status, prox
from stepax.solve._prox.operators import as_operator


minimize: Any = stepax.minimize
TABLE: Any = load_diabetes()
X, Y = TABLE.data, TABLE.target
X, Y = X / X.std(0), Y - Y.mean()


def squares(w, x=X, y=Y):
    return jnp.sum((y - x @ w) ** 2) / (2 * len(y))


def bowl(x, center=2.0):
    return jnp.sum((x - center) ** 2) / 2


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [30.0, 1.0, 0.01])
def test_the_lasso_is_that_of_coordinate_descent(x64, alpha):
    found = minimize(squares, jnp.zeros(10), prox=prox.l1(alpha))
    theirs = Lasso(alpha=alpha, fit_intercept=False, tol=1e-14, max_iter=10**6)
    w = theirs.fit(X, Y).coef_
    least = squares(w) + alpha * np.abs(w).sum()
    assert found.success and abs(found.value - least) <= 1e-8
    np.testing.assert_allclose(found.params, w, atol=1e-6)
    np.testing.assert_array_equal(found.params == 0, w == 0)


@pytest.mark.slow
def test_the_elastic_net_is_that_of_coordinate_descent(x64):
    for ratio in 0.2, 0.9:
        g = prox.elastic_net(0.5 * ratio, 0.5 * (1 - ratio))
        found = minimize(squares, jnp.zeros(10), prox=g)
        theirs = ElasticNet(
            alpha=0.5, l1_ratio=ratio, fit_intercept=False, tol=1e-14, max_iter=10**6
        )
        w = jnp.asarray(theirs.fit(X, Y).coef_)
        assert abs(found.value - squares(w) - g.value(w)) <= 1e-8


NONE = {"none": None, "name": None}
# Each with the minimum of |x - 2|² / 2 + g(x) over a tree of 2 and 1 elements.
MINIMA: dict[str, tuple] = {
    "l1": (prox.l1(0.5), 1.5, 1.5),
    "weights": (prox.l1({"a": 0.5, "b": 9.0} | NONE), 1.5, 0.0),
    "by path": ({"a": prox.l1(0.5)}, 1.5, 2.0),
    "all by path": ({"b": prox.box(None, 1.0), "**": prox.l2_squared(1.0)}, 1.0, 1.0),
    "simplex": (prox.simplex(3.0), 1.0, 1.0),
    "ball": (prox.l2_ball(3.0**0.5), 1.0, 1.0),
    "box": (prox.box(-1.0, {"a": 1.0, "b": None} | NONE), 1.0, 2.0),
    "a function": (
        prox.from_projection(lambda t: jax.tree.map(lambda x: jnp.clip(x, 0, 1), t)),
        1.0,
        1.0,
    ),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", MINIMA)
def test_minima_of_any_operator_and_tree(name):
    g, a, b = MINIMA[name]
    start = {"a": jnp.full(2, -9.0), "b": jnp.float32(5), "none": None, "name": "x"}
    fun = lambda p: bowl(p["a"]) + bowl(p["b"])
    found = minimize(fun, start, prox=g)
    assert found.success and found.params["name"] == "x"
    np.testing.assert_allclose(found.params["a"], a, atol=1e-3)
    np.testing.assert_allclose(found.params["b"], b, atol=1e-3)
    total = fun(found.params) + as_operator(g).value(found.params)
    np.testing.assert_allclose(found.value, total, rtol=1e-5)


@pytest.mark.slow
def test_narrow_and_complex_parameters():
    found = minimize(bowl, jnp.zeros(2, "bfloat16"), prox=prox.l1(1.0))
    assert found.params.dtype == "bfloat16" and found.value.dtype == "float32"
    np.testing.assert_allclose(np.float32(found.params), 1.0, rtol=1e-2)
    fun = lambda z: jnp.sum(jnp.abs(z - (3.0 + 4.0j)) ** 2) / 2
    found = minimize(fun, jnp.zeros(1, "complex64"), prox=prox.l1(2.5))
    np.testing.assert_allclose(found.params, [1.5 + 2.0j], rtol=1e-5)


@pytest.mark.slow
def test_it_stops_by_the_proximal_gradient_at_the_result(x64):
    found = minimize(squares, jnp.zeros(10), prox=prox.l1(1.0), tol=1e-6, history=400)
    assert found.status is Status.CONVERGED_BY_GRADIENT
    slope, w = jax.grad(squares)(found.params), found.params
    rest = jnp.where(w == 0, jnp.maximum(jnp.abs(slope) - 1, 0), slope + jnp.sign(w))
    # The subgradient of the run is one of many at 0; elsewhere it is the only one.
    assert jnp.abs(rest).max() <= found.grad_norm <= 1e-6
    n = int(found.steps)
    np.testing.assert_allclose(found.history.value[n], found.value)
    assert np.isfinite(found.history.grad_norm[: n + 1]).all()
    short = minimize(squares, jnp.zeros(10), prox=prox.l1(1.0), max_steps=3)
    assert short.status is Status.ITERATION_LIMIT and short.steps == 3


@pytest.mark.slow
def test_units_do_not_matter(x64):
    for unit in 1e-8, 1e8:
        fun = lambda x, u=unit: bowl(x * jnp.array([1.0, 3.0])) * u
        found = minimize(fun, jnp.zeros(2), prox=prox.l1(0.5 * unit))
        np.testing.assert_allclose(found.params, [1.5, 2 / 3 - 0.5 / 9], rtol=1e-6)


@pytest.mark.slow
def test_statuses_say_why_it_stopped():
    far = minimize(lambda x: -jnp.sum(x), jnp.ones(2), prox=prox.l1(0.5))
    assert far.status is Status.UNBOUNDED
    bad = minimize(lambda x: jnp.log(jnp.sum(x)), -jnp.ones(2), prox=prox.l1(1.0))
    assert bad.status is Status.NOT_FINITE
    # Moved to the set before the function is evaluated.
    fun = lambda x: jnp.sum(x - jnp.log(x))
    found = minimize(fun, -jnp.ones(2), prox=prox.box(0.1, 9.0))
    assert found.success
    np.testing.assert_allclose(found.params, 1.0, rtol=1e-3)


# --- programs and derivatives --------------------------------------------------------


@pytest.mark.slow
def test_other_weights_compile_nothing():
    traces = []

    def fun(x):
        traces.append(1)
        return bowl(x)

    run = lambda w: minimize(fun, jnp.zeros(2), prox=prox.l1(w)).params
    first, n = run(1.0), len(traces)
    second = run(0.5)
    assert len(traces) == n > 0
    np.testing.assert_allclose([first, second], [[1.0] * 2, [1.5] * 2], rtol=1e-4)
    many = jax.jit(jax.vmap(run))(jnp.array([1.0, 0.5, 3.0]))
    np.testing.assert_allclose(many[:, 0], [1.0, 1.5, 0.0], rtol=1e-4)


KINDS: dict[str, Any] = {
    "l1": lambda a: prox.l1(a[0]),
    "elastic net": lambda a: prox.elastic_net(a[0], a[1]),
    "group": lambda a: prox.group_l2(a[0], axis=None),
    "simplex": lambda a: prox.simplex(a[1]),
    "l2 ball": lambda a: prox.l2_ball(a[1]),
    "box": lambda a: prox.box(0.0, a[0]),
    "by path": lambda a: {"a": prox.l1(a[0]), "b": prox.l1_ball(a[1])},
}


@pytest.mark.slow
@pytest.mark.parametrize("take", [jax.jacfwd, jax.jacrev])
@pytest.mark.parametrize("kind", KINDS)
def test_derivatives_are_those_of_differences(x64, kind, take):
    """With respect to weights, arguments and closed-over arrays."""
    rng = np.random.default_rng(0)
    x, y = jnp.asarray(rng.normal(size=(2, 8, 5)))

    def outputs(a):
        fun = lambda p, b: squares(jnp.append(p["a"], p["b"]), x, y[:, 0] * b) * a[2]
        start = {"a": jnp.ones(3), "b": jnp.ones(2)}
        found = minimize(fun, start, args=(a[3],), prox=KINDS[kind](a), tol=1e-11)
        return jnp.append(jnp.append(found.params["a"], found.params["b"]), found.value)

    a, h = jnp.array([0.05, 0.3, 1.0, 2.0]), 1e-5
    run = jax.jit(jax.vmap(outputs))
    slope = (run(a[None] + h * jnp.eye(4)) - run(a[None] - h * jnp.eye(4))).T / (2 * h)
    np.testing.assert_allclose(jax.jit(take(outputs))(a), slope, atol=1e-5)


@pytest.mark.slow
def test_a_large_system_is_solved_without_its_matrix(x64, monkeypatch):
    from inside import implicit

    def first(w):
        return minimize(squares, jnp.zeros(10), prox=prox.l1(w), tol=1e-10).params[2]

    wanted = jax.grad(first)(1.0)
    monkeypatch.setattr(implicit, "MOST", 4)
    np.testing.assert_allclose(jax.grad(first)(1.0), wanted, rtol=1e-6)


# --- bad input -----------------------------------------------------------------------

WRONG: dict[str, tuple] = {
    "bounds": (
        {"bounds": (0, 1)},
        ValueError,
        "with `bounds`: write bounds as `prox.b",
    ),
    "constraints": (
        {"constraints": jnp.sum},
        ValueError,
        "combined with `constraints`",
    ),
    "method": (
        {"method": stepax.adam(1.0)},
        ValueError,
        "end a chain with `stepax.pro",
    ),
    "a number": ({"prox": 3.0}, TypeError, "`prox` is a `float`, expected an operator"),
    "a function": (
        {"prox": lambda x: x},
        TypeError,
        "`prox` is a `function`, expected an operator of `stepax.solve.prox`, such as "
        "`prox.l1(0.1)`, an object with `value(x)` and `__call__(x, step)`, or a dict "
        "from path patterns to these (for a projection, `prox.from_projection(p)`)",
    ),
    "in a dict": ({"prox": {"a": 3.0}}, TypeError, "`prox['a']` is a `float`"),
    "a pattern": (
        {"prox": {"b": prox.l1(1.0)}},
        ValueError,
        "`b` in `prox` matches no",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_arguments_say_what_to_write(wrong):
    more, error, message = WRONG[wrong]
    with pytest.raises(error) as caught:
        minimize(
            lambda p: bowl(p["a"]), {"a": jnp.ones(2)}, **{"prox": prox.l1(1.0)} | more
        )
    assert message in str(caught.value)
