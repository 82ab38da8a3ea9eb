"""Derivatives of a minimum, batches of minima, and minima within other programs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stepax
from stepax.solve import Status


# What compiles quickly, where the method does not matter.
SGD = stepax.sgd(0.01)

_RANDOM = np.random.RandomState(0)
A, B = _RANDOM.randn(20, 3), _RANDOM.randn(20)


def ridge(l):
    """The result for a weight l of the squares, which the function closes over."""
    return stepax.minimize(
        lambda w: jnp.sum((A @ w - B) ** 2) + l * jnp.sum(w**2),
        jnp.zeros(3),
        method=SGD,
        tol=1e-12,
    )


def closed(l):
    return jnp.linalg.solve(A.T @ A + l * jnp.eye(3), A.T @ B)


@pytest.mark.slow
def test_derivatives_are_those_of_the_closed_form(x64):
    def least(l):
        w = closed(l)
        return jnp.sum((A @ w - B) ** 2) + l * jnp.sum(w**2)

    both = lambda l: (ridge(l).params, ridge(l).value)
    exact = lambda l: (closed(l), least(l))
    l = jnp.asarray(0.7)
    for derivative in (jax.jacfwd, jax.jacrev, jax.hessian):
        found, wanted = jax.jit(derivative(both))(l), derivative(exact)(l)
        for x, y in zip(found, wanted, strict=True):
            # Conjugate gradients stop at eps^0.75, 2e-12.
            np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_derivatives_of_a_batch_are_those_of_its_members(x64):
    ls = jnp.array([0.1, 0.7, 2.0])
    wanted = jax.vmap(jax.grad(lambda l: jnp.sum(closed(l))))(ls)
    total = lambda l: jnp.sum(ridge(l).params)
    each = jax.vmap(jax.grad(total))(ls)
    sum_of_all = jax.jit(jax.grad(lambda ls: jnp.sum(jax.vmap(total)(ls))))(ls)
    np.testing.assert_allclose(each, wanted, rtol=1e-9)
    np.testing.assert_allclose(sum_of_all, wanted, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["lbfgs", stepax.adam(0.05)], ids=["lbfgs", "adam"])
def test_derivatives_are_those_of_finite_differences(method, x64):
    def fun(p, data):
        q = jnp.concatenate([p["a"], p["b"][None]])
        rest = jnp.sum((q[1:] - data["t"] * q[:-1] ** 2) ** 2)
        return rest + jnp.sum((q - data["c"]) ** 2) + jnp.sum(q**4)

    @jax.jit
    def total(data):
        x0 = {"a": jnp.zeros(2), "b": jnp.zeros([])}
        found = stepax.minimize(
            fun, x0, args=(data,), method=method, tol=1e-12, max_steps=20000
        )
        return jnp.sum(jnp.sin(found.params["a"])) + found.params["b"] * found.value

    data = {"t": jnp.asarray(0.8), "c": jnp.array([0.5, -0.3, 0.9])}
    found = jax.jit(jax.grad(total))(data)
    h = 1e-5
    for name, i in (("t", ()), ("c", (0,)), ("c", (2,))):
        move = lambda s, name=name, i=i: {**data, name: data[name].at[i].add(s)}
        slope = (total(move(h)) - total(move(-h))) / (2 * h)
        np.testing.assert_allclose(found[name][i], slope, rtol=1e-7)


@pytest.mark.slow
def test_parameters_at_a_bound_move_with_it(x64):
    c = jnp.array([1.0, -2.0, 3.0])

    def found(t, upper):
        fun = lambda x: jnp.sum((x - t * c) ** 2) + x[0] * x[1] + x[0] * x[2]
        return stepax.minimize(fun, jnp.zeros(3), bounds=(-1.0, upper)).params

    point = jnp.asarray(1.1), jnp.asarray(2.5)
    x, forward = jax.linearize(found, *point)  # which minimizes once
    assert x[1] == -1 and x[2] == 2.5 and -1 < x[0] < 2.5
    # x0 = t - (x1 + x2) / 2, with x1 = -1 and x2 = upper.
    wanted = np.array([[1, 0, 0], [-0.5, 0, 1]])
    columns = [forward(1.0, 0.0), forward(0.0, 1.0)]
    np.testing.assert_allclose(columns, wanted, atol=1e-9)
    backward = jax.linear_transpose(forward, *point)
    rows = np.array([backward(row) for row in jnp.eye(3)])
    np.testing.assert_allclose(rows.T, wanted, atol=1e-9)


@pytest.mark.slow
def test_complex_minima_have_derivatives(x64):
    center, scale = jnp.asarray(1 + 2j), jnp.array([1.0, 10.0])
    fun = lambda z, t: jnp.sum(scale * jnp.abs(z - t * center) ** 2)
    x0 = jnp.array([3 + 0j, 1j])
    run = lambda t: stepax.minimize(fun, x0, args=(t,), method=SGD).params
    found = jax.jacfwd(run)(1.0)
    np.testing.assert_allclose(found, [1 + 2j, 1 + 2j], atol=1e-8)


def test_the_start_has_no_derivative(x64):
    fun = lambda p: jnp.sum((p - 1) ** 2)
    total = lambda x0: jnp.sum(stepax.minimize(fun, x0, method=SGD).params)
    np.testing.assert_array_equal(jax.jit(jax.grad(total))(jnp.zeros(2)), 0)


def rosenbrock(p):
    return jnp.sum(100 * (p[1:] - p[:-1] ** 2) ** 2 + (1 - p[:-1]) ** 2)


@pytest.mark.slow
def test_members_of_a_batch_stop_on_their_own(x64):
    starts = jnp.array([[-1.2, 1.0], [1.0, 1.0], [0.0, 0.0], [jnp.nan, 0.0]])
    one = lambda p: stepax.minimize(rosenbrock, p, max_steps=25)
    together = jax.jit(jax.vmap(one))(starts)
    alone = [one(p) for p in starts]
    for i, found in enumerate(alone):
        assert together.status[i] is found.status
        assert together.steps[i] == found.steps
        assert together.evaluations[i] == found.evaluations
        np.testing.assert_allclose(together.params[i], found.params, rtol=1e-6)
    assert list(together.status) == [
        Status.ITERATION_LIMIT,
        Status.CONVERGED_BY_GRADIENT,
        Status.CONVERGED_BY_VALUE,
        Status.NOT_FINITE,
    ]
    np.testing.assert_array_equal(together.success, [False, True, True, False])


@pytest.mark.slow
def test_it_runs_inside_of_scan_and_reads_integers_from_outside():
    def step(start, k):
        fun = lambda p: jnp.sum((p - k.astype(p.dtype)) ** 2)
        found = stepax.minimize(fun, start, method=stepax.sgd(0.3))
        is_found = found.code == Status.CONVERGED_BY_GRADIENT
        return found.params, (found.params[0], is_found)

    ks = jnp.arange(3)
    _, (path, is_found) = jax.lax.scan(step, jnp.zeros(2), ks)
    # The gradient, twice the distance, is at most 3.5e-4.
    np.testing.assert_allclose(path, ks, atol=2e-4)
    assert is_found.all()
    batch = jax.vmap(lambda k: step(jnp.zeros(2), k)[1][0])(ks)
    np.testing.assert_allclose(batch, ks, atol=2e-4)


@pytest.mark.slow
def test_parameters_that_no_data_moves_have_a_gradient(x64):
    def best(a):
        def fun(x, a):
            return jnp.sum((x["a"] - a) ** 2) + jnp.sum((x["c"] - 1) ** 2)

        x0 = {"a": jnp.zeros(2), "c": jnp.zeros(1)}
        return stepax.minimize(fun, x0, args=(a,)).params

    given = jnp.array([1.0, 2.0])
    moved = jax.grad(lambda a: jnp.sum(best(a)["a"] ** 2))
    unmoved = jax.grad(lambda a: jnp.sum(best(a)["c"]))
    found, still = jax.jit(lambda a: (moved(a), unmoved(a)))(given)
    np.testing.assert_allclose(found, 2 * given, rtol=1e-6)  # that of the default tol
    np.testing.assert_array_equal(still, 0.0)
