"""What JAXopt is used for, written by the page alone, beside JAXopt where it runs."""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import stepax
from stepax import solve
from stepax.solve import prox


RANDOM = np.random.RandomState(0)
X, NOISE = RANDOM.randn(30, 4), 0.1 * RANDOM.randn(30)
Y = X @ [1.0, -0.5, 0.0, 2.0] + NOISE
LABELS = np.sign(X @ [1.0, 1.0, -1.0, 0.5] + 0.3)
TIMES = np.linspace(0, 3, 12)
CURVE = np.sin(2 * TIMES)
W = 0.4 * RANDOM.randn(4, 4) / 2
COST = np.abs(np.linspace(0, 1, 5)[:, None] - np.linspace(0, 1, 6)[None])
FROM, TO = np.full(5, 0.2), np.arange(1.0, 7) / 21


def squares(w, x=X, y=Y):
    return 0.5 * jnp.mean((x @ w - y) ** 2)


def evidence(p):
    """The negative log evidence of a Gaussian process, of log lengthscale and noise."""
    apart = TIMES[:, None] - TIMES[None]
    k = jnp.exp(-0.5 * (apart / jnp.exp(p[0])) ** 2)
    root = jnp.linalg.cholesky(k + jnp.exp(p[1]) * jnp.eye(12))
    z = jax.scipy.linalg.solve_triangular(root, CURVE, lower=True)
    return 0.5 * z @ z + jnp.sum(jnp.log(jnp.diag(root)))


def gaussian_process(jaxopt):
    start, box = jnp.zeros(2), (jnp.array([-2.0, -4.0]), jnp.array([2.0, 1.0]))
    ours = stepax.minimize(evidence, start, bounds=box).params
    return ours, lambda: jaxopt.LBFGSB(evidence, tol=1e-8).run(start, box).params


def nonnegative_least_squares(jaxopt):
    ours = solve.least_squares(lambda w: X @ w - Y, jnp.zeros(4), bounds=(0, None))
    positive = jaxopt and jaxopt.projection.projection_non_negative
    theirs = lambda: (
        jaxopt.ProjectedGradient(squares, positive, tol=1e-9, maxiter=5000)
        .run(jnp.zeros(4))
        .params
    )
    return ours.params, theirs


def group_lasso(jaxopt):
    start, fun = jnp.zeros((2, 2)), lambda w: squares(w.reshape(-1))
    ours = stepax.minimize(fun, start, prox=prox.group_l2(0.3)).params
    rows = lambda w, weight, scaling=1.0: jax.vmap(
        lambda row: jaxopt.prox.prox_group_lasso(row, weight, scaling)
    )(w)
    theirs = lambda: (
        jaxopt.ProximalGradient(fun, rows, tol=1e-9, maxiter=5000)
        .run(start, hyperparams_prox=0.3)
        .params
    )
    return ours, theirs


def svm_dual(jaxopt):
    k = (X * LABELS[:, None]) @ (X * LABELS[:, None]).T + 1e-6 * np.eye(30)
    limits = {"equality": (LABELS[None], np.zeros(1)), "bounds": (0, 1.0)}
    ours = solve.quadratic_program(k, -np.ones(30), **limits)
    rows = jnp.concatenate([jnp.eye(30), LABELS[None]])
    sides = jnp.zeros(31), jnp.append(jnp.ones(30), 0.0)
    theirs = lambda: (
        jaxopt.BoxOSQP(tol=1e-8, maxiter=20000)
        .run(
            params_obj=(jnp.array(k), -jnp.ones(30)), params_eq=rows, params_ineq=sides
        )
        .params.primal[0]
    )
    return ours.params, theirs


def optimal_transport(jaxopt):
    """The potential of Sinkhorn's iteration, up to a constant."""
    soft = lambda z, axis: 0.1 * jax.scipy.special.logsumexp(z / 0.1, axis=axis)

    def step(g):
        f = 0.1 * jnp.log(FROM) - soft(g[None] - COST, 1)
        new = 0.1 * jnp.log(TO) - soft(f[:, None] - COST, 0)
        return new - jnp.mean(new)

    ours = solve.fixed_point(step, jnp.zeros(6)).params
    theirs = lambda: (
        jaxopt.FixedPointIteration(step, maxiter=5000, tol=1e-10)
        .run(jnp.zeros(6))
        .params
    )
    return ours, theirs


def implicit_ridge(jaxopt):
    fun = lambda w, weight: squares(w) + 0.5 * weight * w @ w
    ours = jax.jacobian(lambda t: stepax.minimize(fun, jnp.zeros(4), args=t).params)
    theirs = lambda: jax.jacobian(
        lambda t: jaxopt.LBFGS(fun, tol=1e-9).run(jnp.zeros(4), t).params
    )(0.5)
    return ours(0.5), theirs


def anderson(jaxopt):
    step = lambda w: w - 0.2 * jax.grad(squares)(w)
    ours = solve.fixed_point(step, jnp.zeros(4), memory=3, tol=1e-10).params
    theirs = lambda: (
        jaxopt.AndersonAcceleration(step, history_size=3, maxiter=500, tol=1e-10)
        .run(jnp.zeros(4))
        .params
    )
    return ours, theirs


def deep_equilibrium(jaxopt):
    layer = lambda z, w: jnp.tanh(w @ z + X[0])
    one = lambda w: jnp.sum(solve.fixed_point(layer, jnp.zeros(4), args=(w,)).params)
    solver = jaxopt and jaxopt.FixedPointIteration(layer, maxiter=500, tol=1e-12)
    two = lambda w: jnp.sum(solver.run(jnp.zeros(4), w).params)
    return jax.jit(jax.grad(one))(jnp.array(W)), lambda: jax.grad(two)(jnp.array(W))


def pathfinder(jaxopt):
    """The iterates of L-BFGS, of which Pathfinder takes the best."""
    seen = []
    stepax.minimize(squares, jnp.zeros(4), callback=lambda found: seen.append(found.x))
    return seen[-1], lambda: jaxopt.LBFGS(squares, tol=1e-9).run(jnp.zeros(4)).params


def hyperparameter_search(jaxopt):
    """The weight of a ridge whose error on other data is least."""
    train, rest = (X[:15], Y[:15] + 1), (X[15:], Y[15:])
    inner = lambda w, t: squares(w, *train) + jnp.exp(t) * w @ w
    one = lambda t: squares(stepax.minimize(inner, jnp.zeros(4), args=t).params, *rest)
    ours = stepax.minimize(one, 0.0, method=stepax.sgd(1.0), max_steps=20).params
    fit = lambda t: jaxopt.LBFGS(inner, tol=1e-10).run(jnp.zeros(4), t).params
    slope = lambda t: jax.grad(lambda t: squares(fit(t), *rest))(t)
    return jax.jit(jax.grad(one))(ours), lambda: slope(ours)


def batched_fits(jaxopt):
    residuals = lambda p, y: p[0] * jnp.exp(-p[1] * TIMES) - y
    ys = jnp.stack([2 * np.exp(-0.5 * TIMES), 3 * np.exp(-TIMES) + 0.01])
    one = lambda y: solve.least_squares(residuals, jnp.ones(2), args=(y,)).params
    two = lambda y: (
        jaxopt.LevenbergMarquardt(residuals, tol=1e-10).run(jnp.ones(2), y=y).params
    )
    return jax.vmap(one)(ys), lambda: jnp.stack([two(y) for y in ys])


def run_iterator(jaxopt):
    """Steps over batches, of which `run_iterator` takes one each."""
    batches = [(X[i : i + 10], Y[i : i + 10]) for i in (0, 10, 20)] * 100
    tx, w = stepax.sgd(0.1), jnp.zeros(4)
    state, slope = tx.init(w), jax.jit(jax.grad(squares))
    for x, y in batches:
        w, state = stepax.step(tx, slope(w, x, y), state, w)
    fun = lambda w, data: squares(w, *data)
    solver = jaxopt and jaxopt.OptaxSolver(fun, optax.sgd(0.1), maxiter=300, tol=0)
    return w, lambda: solver.run_iterator(jnp.zeros(4), iter(batches)).params


def mirror_descent(jaxopt):
    start = jnp.full(4, 0.25)
    ours = stepax.minimize(squares, start, prox=prox.simplex()).params
    simplex = jaxopt and jaxopt.projection.projection_simplex
    theirs = lambda: (
        jaxopt.ProjectedGradient(squares, simplex, tol=1e-9, maxiter=5000)
        .run(start)
        .params
    )
    return ours, theirs


def block_coordinate_descent(jaxopt):
    ours = stepax.minimize(squares, jnp.zeros(4), prox=prox.l1(0.1)).params
    theirs = lambda: (
        jaxopt.ProximalGradient(squares, jaxopt.prox.prox_lasso, tol=1e-9, maxiter=5000)
        .run(jnp.zeros(4), hyperparams_prox=0.1)
        .params
    )
    return ours, theirs


def polyak_steps(jaxopt):
    exact = lambda w: squares(w, X, X @ [1.0, -0.5, 0.0, 2.0])  # whose minimum is 0
    method = stepax.polyak_sgd(max_learning_rate=1.0)
    ours = stepax.minimize(exact, jnp.zeros(4), method=method, tol=1e-9).params
    solver = jaxopt and jaxopt.PolyakSGD(
        exact, max_stepsize=1.0, maxiter=5000, tol=1e-9
    )
    return ours, lambda: solver.run(jnp.zeros(4)).params


USES: list[Callable[[Any], Any]] = [
    gaussian_process, nonnegative_least_squares, group_lasso, svm_dual,
    optimal_transport, implicit_ridge, anderson, deep_equilibrium, pathfinder,
    hyperparameter_search, batched_fits, run_iterator, mirror_descent,
    block_coordinate_descent, polyak_steps,
]  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_a_use_of_jaxopt_gives_the_same(use, x64):
    with warnings.catch_warnings(), jax.numpy_dtype_promotion("standard"):
        warnings.simplefilter("ignore")
        jaxopt = pytest.importorskip("jaxopt")
        ours, theirs = use(jaxopt)
        np.testing.assert_allclose(ours, theirs(), rtol=1e-4, atol=1e-5)
