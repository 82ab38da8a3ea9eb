"""Jacobians of what divides by a norm, at scales at which squares overflow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stepax
from stepax import contrib, projections


def of(tx):
    return lambda x: tx.update(x, tx.init(x), jnp.ones_like(x))[0]


FUNCTIONS = {
    "clip_by_global_norm": of(stepax.clip_by_global_norm(1.0)),
    "adaptive_grad_clip": of(stepax.adaptive_grad_clip(0.01)),
    "normalize_by_update_norm": of(stepax.normalize_by_update_norm()),
    "normalize": of(contrib.normalize()),
    "projection_l2_ball": projections.projection_l2_ball,
    "projection_l2_sphere": projections.projection_l2_sphere,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_jacobians_are_those_of_float64_at_any_scale(name):
    """With the part along the gradient, which is a product of small numbers."""
    base, f = np.random.default_rng(0).normal(size=4), FUNCTIONS[name]
    scales = [1.0, 1e5, 1e10, 1e15, 3e19, 1e22, 1e25, 1e30]
    x = np.asarray(np.multiply.outer(scales, base), np.float32)
    found = np.asarray(jax.jit(jax.vmap(jax.jacrev(f)))(jnp.asarray(x)), float)
    with jax.enable_x64(True):
        wanted = np.asarray(jax.vmap(jax.jacrev(f))(jnp.asarray(x, jnp.float64)))
    largest = np.abs(wanted).max((1, 2), keepdims=True)
    np.testing.assert_allclose(found / largest, wanted / largest, 0, 1e-5)


ERRORS = [0.0, 0.5, 1.0, -2.0, 1e30, -1e30, np.inf, -np.inf]


@pytest.mark.parametrize("delta", [0.5, 1.0, 3.0, 1e10])
def test_huber_loss_has_its_derivatives_at_any_error(delta):
    def loss(x):
        return stepax.huber_loss(x, delta=delta)

    for x in ERRORS:
        slope, bend = (f(jnp.float32(x)) for f in (jax.grad(loss), jax.hessian(loss)))
        assert slope == np.clip(x, -delta, delta)
        assert bend == float(abs(x) <= delta)
    slope = jax.grad(lambda d: stepax.huber_loss(jnp.float32(5.0), delta=d))(delta)
    np.testing.assert_allclose(slope, max(5.0 - delta, 0.0), rtol=1e-6)


@pytest.mark.parametrize("name", ["huber_loss", "l2_loss", "squared_error", "log_cosh"])
def test_losses_of_infinite_errors_have_a_slope(name):
    loss = getattr(stepax, name)
    for p, t in [(np.inf, 0.0), (-np.inf, 0.0), (3e38, -3e38), (0.0, np.inf)]:
        for of_target in (0, 1):
            slope = jax.grad(loss, of_target)(jnp.float32(p), jnp.float32(t))
            assert not jnp.isnan(slope)
            assert jnp.sign(slope) == (
                np.sign(p - t) if of_target == 0 else -np.sign(p - t)
            )
