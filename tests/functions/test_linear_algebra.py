"""Eigenvalues, inverse roots, least squares, scaled gradients, normal variables."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.optimize
import scipy.stats

import stepax


def definite(n, largest=10.0, smallest=0.1, seed=0):
    """A symmetric matrix of known eigenvalues, in float64."""
    rng = np.random.default_rng(seed)
    q, _ = np.linalg.qr(rng.normal(size=(n, n)))
    values = np.geomspace(smallest, largest, n)
    return (q * values) @ q.T, values, q


def test_power_iteration_finds_the_largest_eigenvalue():
    matrix, values, q = definite(5, smallest=-5.0, largest=-10.0)
    value, v = stepax.power_iteration(jnp.float32(matrix), num_iters=300)
    assert value == pytest.approx(-10.0, rel=1e-5)
    assert jnp.linalg.norm(v) == pytest.approx(1)
    np.testing.assert_allclose(abs(q[:, -1] @ v), 1, rtol=1e-5)


@pytest.mark.few(1)
@pytest.mark.parametrize("tolerance", [0.3, 0.1, 1e-2, 1e-3])
def test_power_iteration_stops_where_optax_does(tolerance):
    matrix = jnp.array([[2.0, 1.0], [1.0, 3.0]])
    options = {"v0": jnp.array([1.0, 0.0]), "error_tolerance": tolerance}
    found = stepax.power_iteration(matrix, **options)
    wanted = optax.power_iteration(matrix, **options)
    # The next iterate would differ by more than a tenth of the tolerance.
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), found, wanted
    )


def test_power_iteration_of_a_function_of_trees():
    def double(tree):
        return {"a": 2 * tree["a"], "b": tree["b"]}

    start = {"a": jnp.ones(2, jnp.bfloat16), "b": jnp.float32(1)}
    value, v = stepax.power_iteration(double, v0=start)
    assert value == pytest.approx(2, rel=1e-2)
    assert v["a"].dtype == jnp.bfloat16 and abs(v["b"]) < 1e-5


@pytest.mark.slow
def test_power_iteration_of_special_matrices():
    value, v = stepax.power_iteration(jnp.zeros((3, 3)))
    assert value == 0 and not v.any()
    hermitian = jnp.array([[2.0, 1.0 + 1.0j], [1.0 - 1.0j, 3.0]])
    value, v = stepax.power_iteration(hermitian)
    np.testing.assert_allclose(value, 4.0, rtol=1e-5)
    np.testing.assert_allclose(hermitian @ v, 4.0 * v, atol=1e-4)
    tiny = 1e-30 * jnp.eye(2)
    assert stepax.power_iteration(tiny)[0] == pytest.approx(1e-30)
    assert stepax.power_iteration(jnp.array([[2, 1], [1, 3]]))[0].dtype == jnp.float32


@pytest.mark.slow
@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
def test_inverse_roots_are_those_of_the_eigenvalues(p):
    matrix, values, q = definite(5)
    root, error = stepax.matrix_inverse_pth_root(jnp.float32(matrix), p)
    wanted = (q * (values + 1e-6 * values.max()) ** (-1 / p)) @ q.T
    # The condition number is 100, times float32's half ulp, in each of p products.
    np.testing.assert_allclose(root, wanted, atol=2e-5 * np.abs(wanted).max())
    assert error < 2e-6
    if p == 3:
        return  # Optax is right for powers of 2 alone
    theirs, _ = optax.matrix_inverse_pth_root(jnp.float32(matrix), p)
    np.testing.assert_allclose(root, theirs, atol=2e-5 * np.abs(wanted).max())


def test_inverse_roots_do_not_depend_on_the_size():
    matrix = jnp.float32(definite(3)[0])
    root, _ = stepax.matrix_inverse_pth_root(matrix, 2)
    for scale in 2.0**-80, 2.0**80:
        found, _ = stepax.matrix_inverse_pth_root(matrix * scale, 2)
        np.testing.assert_allclose(found, root * scale**-0.5, rtol=1e-5)


@pytest.mark.slow
def test_inverse_roots_of_special_matrices():
    find = stepax.matrix_inverse_pth_root
    root, error = find(jnp.zeros((2, 2)), 2)  # λ counts as 1: (1e-6)^(-1/2)
    np.testing.assert_allclose(root, 1e3 * jnp.eye(2), rtol=1e-5)
    root, error = find(jnp.array([[4.0]]), 2)
    np.testing.assert_allclose(root, [[0.5]], rtol=1e-6)
    assert error == 0 and error.dtype == jnp.float32
    traced, _ = jax.jit(find)(jnp.diag(jnp.array([4.0, 1.0])), 3)
    np.testing.assert_allclose(jnp.diagonal(traced), [4 ** (-1 / 3), 1], rtol=1e-4)
    narrow, error = find(jnp.eye(2, dtype=jnp.bfloat16), 2)
    assert narrow.dtype == jnp.bfloat16 and error.dtype == jnp.float32
    several, _ = jax.vmap(lambda a: find(a, 2))(jnp.stack([jnp.eye(2), 4 * jnp.eye(2)]))
    np.testing.assert_allclose(several[1], 0.5 * np.eye(2), rtol=1e-5)


@pytest.mark.slow
def test_iterations_end_as_in_optax():
    matrix = jnp.array([[2.0, 1.0], [1.0, 3.0]])
    every: list[dict[str, Any]] = [
        {"num_iters": 0},
        {"num_iters": 2},
        {"error_tolerance": 0.1},
    ]
    for options in every:
        found = stepax.matrix_inverse_pth_root(matrix, 2, **options)
        wanted = optax.matrix_inverse_pth_root(matrix, 2, **options)
        np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(found[1], wanted[1], rtol=1e-4)


@pytest.mark.few(1)
@pytest.mark.parametrize("shape", [(8, 3), (3, 3), (3, 6)])
def test_nnls_agrees_with_scipy(shape):
    rng = np.random.default_rng(1)
    A, b = rng.normal(size=shape), rng.normal(size=(shape[0], 2))
    x = stepax.nnls(jnp.float32(A), jnp.float32(b), 2000)
    assert (x >= 0).all() and x.shape == (shape[1], 2)
    for k in range(2):
        _, least = scipy.optimize.nnls(A, b[:, k])
        assert np.linalg.norm(A @ x[:, k] - b[:, k]) == pytest.approx(least, abs=1e-3)
    assert stepax.nnls(jnp.float32(A), jnp.float32(b[:, 0]), 3).shape == shape[1:]


@pytest.mark.slow
@pytest.mark.parametrize("L", [None, 30.0])
def test_nnls_is_one_iteration_ahead_of_optax(L):
    A, b = jnp.array([[2.0, 1.0], [1.0, 3.0]]), jnp.array([3.0, 2.0])
    for iters in 1, 2, 7:
        found = stepax.nnls(A, b, iters, L=L, unroll=2)
        np.testing.assert_allclose(found, optax.nnls(A, b, iters + 1, L=L), rtol=1e-5)


def test_nnls_of_zeros_is_finite():
    assert not stepax.nnls(jnp.zeros((2, 2)), jnp.ones(2), 3).any()
    assert stepax.nnls(jnp.ones((2, 2), int), jnp.ones(2), 3).dtype == jnp.float32


@pytest.mark.slow
def test_a_scaled_gradient_is_scaled_in_both_modes():
    f = lambda x, s: jnp.square(stepax.scale_gradient({"x": x, "s": "text"}, s)["x"])
    for scale in 0.5, jnp.float32(0.5), 1, 0:
        for d in jax.grad, jax.jacfwd:
            assert d(f)(3.0, scale) == 6 * scale
    assert jax.jit(jax.grad(f))(3.0, 0.25) == 1.5
    assert jax.grad(jax.grad(lambda x: f(x, 0.5)))(3.0) == 0.5  # scaled twice
    assert f(jnp.int32(3), 0.5) == 9 and f(jnp.ones(2), 0.5).shape == (2,)
    sick = lambda x: jnp.sqrt(stepax.scale_gradient(x, 0.0))
    assert jax.grad(sick)(0.0) == 0


def test_scaled_gradients_agree_with_optax():
    for scale in 0.0, 0.3, -1.0:
        found, wanted = (
            jax.grad(lambda x, m=m, s=scale: jnp.sum(jnp.sin(m.scale_gradient(x, s))))(
                jnp.linspace(0.0, 1.0, 5)
            )
            for m in (stepax, optax)
        )
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.slow
def test_normal_variables():
    loc, log_scale = jnp.array([1.0, 2.0]), jnp.array([0.0, -1.0])
    ours, theirs = (m.multi_normal(loc, log_scale) for m in (stepax, optax))
    key = jax.random.key(0)
    with jax.numpy_rank_promotion("allow"):
        np.testing.assert_array_equal(ours.sample((3,), key), theirs.sample((3,), key))
    x = jnp.array([[1.0, 3.0], [0.0, 0.0]])
    wanted = scipy.stats.norm.logpdf(x, loc[None], np.exp(log_scale)[None]).sum(-1)
    np.testing.assert_allclose(ours.log_prob(x), wanted, rtol=1e-6)
    np.testing.assert_array_equal(ours.params[0], loc)
    np.testing.assert_array_equal(ours.log_scale, log_scale)
    assert stepax.multi_normal(1.0, 0.0).log_prob(jnp.ones(4)).shape == (4,)
    narrow = stepax.multi_normal(loc.astype(jnp.bfloat16), 0.0)
    assert narrow.log_prob(x).dtype == jnp.float32


WRONG = {
    r"`matrix` has shape \(2, 3\), expected a square one": lambda m: m.power_iteration(
        jnp.ones((2, 3))
    ),
    r"`matrix` has shape \(0, 0\)": lambda m: m.power_iteration(jnp.ones((0, 0))),
    r"`v0` has shape \(3,\), expected \(2,\)": lambda m: m.power_iteration(
        jnp.eye(2), v0=jnp.ones(3)
    ),
    "`v0` is missing": lambda m: m.power_iteration(lambda v: v),
    r"`matrix` returns the shape \(2, 2\) for a vector of shape \(2,\)": lambda m: (
        m.power_iteration(jnp.diag, v0=jnp.ones(2))
    ),
    "what `matrix` returns": lambda m: m.power_iteration(
        lambda v: {"a": v}, v0=jnp.ones(2)
    ),
    r"`matrix` has shape \(2, 2, 2\).*`jax.vmap`": lambda m: m.matrix_inverse_pth_root(
        jnp.ones((2, 2, 2)), 2
    ),
    "`p` is 0": lambda m: m.matrix_inverse_pth_root(jnp.eye(2), 0),
    r"`A` has shape \(2,\), expected a matrix": lambda m: m.nnls(
        jnp.ones(2), jnp.ones(2), 1
    ),
    r"`b` has shape \(3,\), expected \(2,\) or \(2, K\)": lambda m: m.nnls(
        jnp.eye(2), jnp.ones(3), 1
    ),
    "`b` is complex": lambda m: m.nnls(jnp.eye(2), jnp.ones(2, complex), 1),
    r"`scale` has shape \(2,\)": lambda m: m.scale_gradient(1.0, jnp.ones(2)),
    r"`loc` has shape \(2,\) and `log_scale` has shape \(3,\)": lambda m: (
        m.multi_normal(jnp.ones(2), jnp.ones(3))
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_calls(message):
    with pytest.raises(ValueError, match=message):
        WRONG[message](stepax)
