"""Damped Gauss-Newton against its formulas in NumPy, and on curves and classes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import stepax
from stepax.contrib import gauss_newton


X = np.random.RandomState(0).randn(6, 3)
Y = np.random.RandomState(1).randn(6)
SOLVES = ["cg", "samples"]


def outputs(p: Any) -> Any:
    return jnp.tanh(jnp.asarray(X, p["w"].dtype) @ p["w"]) + p["b"]


def loss(out: Any) -> jax.Array:
    """Not a square: H is no multiple of the identity."""
    e = out - jnp.asarray(Y, out.dtype)
    return jnp.mean(e**2 / 2 + e**4 / 4)


def start(dtype: Any = float) -> Any:
    return {"w": jnp.full(3, 0.3, dtype), "b": jnp.asarray(0.1, dtype)}


def steps(tx: Any, p: Any, n: int, outputs: Any = outputs, loss: Any = loss) -> Any:
    state = tx.init(p)

    @jax.jit
    def step(p, state):
        grads = jax.grad(lambda p: loss(outputs(p)))(p)
        u, state = tx.update(grads, state, p, outputs_fn=outputs, loss_fn=loss)
        return stepax.apply_updates(p, u), state

    for _ in range(n):
        p, state = step(p, state)
        yield p, state


def transcribed(damping: float, momentum: float, n: int, adapt: bool) -> Any:
    """The update of the docstring with whole matrices, in NumPy."""
    p, last = np.array([0.3, 0.3, 0.3, 0.1]), np.zeros(4)
    f = lambda p: np.tanh(X @ p[:3]) + p[3]
    value = lambda out: np.mean((out - Y) ** 2 / 2 + (out - Y) ** 4 / 4)
    for _ in range(n):
        out = f(p)
        e, t = out - Y, np.tanh(X @ p[:3])
        J = np.concatenate([(1 - t**2)[:, None] * X, np.ones((6, 1))], 1)
        H, r = np.diag((1 + 3 * e**2) / 6), (e + e**3) / 6
        G, g = J.T @ H @ J, J.T @ r
        matrix = G + damping * np.eye(4)
        d = np.linalg.solve(matrix, damping * momentum * last - g)
        last = d
        ratio = (value(f(p + d)) - value(out)) / (g @ d + d @ G @ d / 2)
        if adapt:
            damping *= 4 if ratio <= 0.25 else 1 / 3 if ratio >= 0.75 else 1
        if not adapt or ratio > 0:
            p = p + d
        yield p, damping


@pytest.mark.few(2)
@pytest.mark.parametrize("adapt", [True, False])
@pytest.mark.parametrize("momentum", [0.0, 0.8])
@pytest.mark.parametrize("solve", SOLVES)
def test_steps_are_those_of_the_formula(x64, solve, momentum, adapt):
    tx = gauss_newton(0.01, solve, 20, momentum, adapt=adapt)
    rows = zip(
        steps(tx, start(), 6), transcribed(0.01, momentum, 6, adapt), strict=True
    )
    for (p, state), (wanted, damping) in rows:
        # By conjugate gradients up to rounding times the condition, 100 or so.
        found = np.append(p["w"], p["b"])
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(state.damping, damping, rtol=1e-12)


@pytest.mark.few(1)
@pytest.mark.parametrize("rows", [3, 6])
def test_a_geodesic_bends_the_step_as_the_outputs_are(x64, rows):
    """By matrices for the outputs and the parameters; in NumPy as whole matrices."""
    f, x, y = lambda p: outputs(p)[:rows], X[:rows], Y[:rows]
    value = lambda out: jnp.mean((out - y) ** 2 / 2 + (out - y) ** 4 / 4)
    p, damping = start(), 5.0
    tx = gauss_newton(damping, "samples", geodesic=True)
    more = {"outputs_fn": f, "loss_fn": value}
    u, _ = jax.jit(lambda p: tx.update(p, tx.init(p), p, **more))(p)
    t, e = np.tanh(x @ np.full(3, 0.3)), np.asarray(f(p)) - y
    J = np.concatenate([(1 - t**2)[:, None] * x, np.ones((rows, 1))], 1)
    H = np.diag((1 + 3 * e**2) / rows)
    matrix = J.T @ H @ J + damping * np.eye(4)
    d = -np.linalg.solve(matrix, J.T @ (e + e**3) / rows)
    curved = -2 * t * (1 - t**2) * (x @ d[:3]) ** 2
    a = -np.linalg.solve(matrix, J.T @ H @ curved)
    assert 1e-3 < np.linalg.norm(a) / np.linalg.norm(d) < 0.5
    np.testing.assert_allclose(np.append(u["w"], u["b"]), d + a / 2, rtol=1e-10)


def parts(p: Any) -> Any:
    """More outputs than parameters, in two arrays, beside one that does not move."""
    return {
        "a": outputs(p),
        "b": (jnp.outer(p["w"], p["w"]), p["n"].astype(float) * p["b"]),
    }


@pytest.mark.few(1)
@pytest.mark.parametrize("fewer", ["outputs", "parameters"])
def test_a_given_jacobian_is_that_of_the_outputs(x64, fewer):
    """And both matrices give the step of conjugate gradients."""
    f = parts if fewer == "parameters" else lambda p: outputs(p)[:3]
    value = lambda out: sum(jnp.mean(jnp.cosh(x)) for x in jax.tree.leaves(out))
    p = start() | {"n": jnp.arange(1, 3)}
    moved = {"w": jnp.ones(3), "b": jnp.ones(()), "n": None}
    jacobian = lambda p: jax.jacobian(f, allow_int=True)(p)
    more = {"outputs_fn": f, "loss_fn": value}
    given = more | {"jacobian_fn": jacobian}
    calls = ("cg", more), ("samples", more), ("samples", given)

    @jax.jit
    def updated(p):
        state = gauss_newton(0.01).init(p)
        step = lambda solve, more: gauss_newton(0.01, solve, 30).update(
            moved, state, p, **more
        )
        return [step(*call)[0] for call in calls]

    wanted, alone, found = updated(p)
    for name in "w", "b":
        np.testing.assert_allclose(found[name], alone[name], rtol=1e-12)
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-9)


@pytest.mark.slow("test_steps_are_those_of_the_formula")
@pytest.mark.parametrize("solve", SOLVES)
def test_a_curve_with_fewer_outputs_than_parameters_is_met(solve):
    """In float32, up to the rounding of the outputs."""
    p = {"w": jnp.full((3, 20), 0.1), "v": jnp.linspace(-1, 1, 20)}
    net = lambda p: jnp.tanh(jnp.asarray(X, "float32") @ p["w"]) @ p["v"]
    square = lambda out: jnp.mean((out - jnp.asarray(Y, "float32")) ** 2)
    tx = gauss_newton(1e-2, solve, steps=20)
    *_, (p, _) = steps(tx, p, 25, net, square)
    assert square(net(p)) < 1e-9


def test_a_step_that_raises_the_loss_is_not_taken(x64):
    """From 10, Newton's step for arctan goes farther away than it started."""
    f, square = lambda p: jnp.arctan(p), lambda out: jnp.sum(out**2)
    p = jnp.asarray(10.0)
    values = [square(f(p))]
    for new, state in steps(gauss_newton(1e-6), p, 30, f, square):
        values.append(square(f(new)))
        assert values[-1] <= values[-2]
        assert (values[-1] == values[-2]) <= (state.ratio <= 0)
    assert values[1] == values[0] and values[-1] < 1e-20


@pytest.mark.few(1)
@pytest.mark.parametrize("solve", SOLVES)
def test_parameters_without_a_gradient_stay(solve):
    p = start() | {"name": "x", "n": jnp.arange(2)}
    grads = {"w": jnp.ones(3), "b": jnp.ones(()), "name": None, "n": None}
    tx = gauss_newton(0.01, solve, momentum=0.5)
    state = tx.init(p)
    more = {"outputs_fn": outputs, "loss_fn": loss}
    u, new = jax.jit(lambda: tx.update(grads, state, p, **more))()
    assert u["name"] is None and u["n"] is None and u["w"].shape == (3,)
    assert jax.tree.structure(new) == jax.tree.structure(state)


def test_samples_may_be_sharded():
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))
    place = NamedSharding(mesh, PartitionSpec("d"))
    x, y = (jax.device_put(jnp.asarray(a, "float32"), place) for a in (X, Y))
    tx = gauss_newton(0.01, "samples")

    @jax.jit
    def updated(x, y, p):
        f = lambda p: jnp.tanh(x @ p["w"]) + p["b"] - y
        more = {"outputs_fn": f, "loss_fn": lambda e: jnp.mean(e**2)}
        return tx.update(p, tx.init(p), p, **more)[0]["w"]

    p = start(jnp.float32)
    alone = updated(jnp.asarray(X, "float32"), jnp.asarray(Y, "float32"), p)
    np.testing.assert_allclose(updated(x, y, p), alone, rtol=1e-4)


def test_what_is_missing_is_named():
    with pytest.raises(
        ValueError, match="`solve` is 'lu', expected one of .'cg', 'samples'"
    ):
        gauss_newton(solve="lu")
    with pytest.raises(TypeError, match="real parameters, but the parameter at the ro"):
        gauss_newton().init(jnp.ones(2, complex))
    p, tx = start(), gauss_newton()
    with pytest.raises(ValueError, match="reads `outputs_fn`, the outputs as a functi"):
        tx.update(p, tx.init(p), p)
    with pytest.raises(ValueError, match="reads `loss_fn`, the loss as a function of"):
        tx.update(p, tx.init(p), p, outputs_fn=outputs)
    with pytest.raises(ValueError, match="reads `params`"):
        tx.update(p, tx.init(p), outputs_fn=outputs, loss_fn=loss)
    rows = {"jacobian_fn": lambda p: jax.jacobian(outputs)(p) | {"w": jnp.ones((3, 6))}}
    more = {"outputs_fn": outputs, "loss_fn": loss} | rows
    with pytest.raises(ValueError, match=r"shape \(3, 6\) for outputs of shape \(6,\)"):
        jax.eval_shape(
            lambda p: gauss_newton(solve="samples").update(p, tx.init(p), p, **more), p
        )
