"""What the tests of injected hyperparameters share."""

from typing import Any

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
from cases import make

import stepax


inject: Any = stepax.inject_hyperparams


def parameters(dtype="float32"):
    # Of full rank, so that no eigenvector is arbitrary.
    w = (jnp.arange(12.0) ** 2 % 7).reshape(4, 3)
    p = {"w": w / 8 - 0.3, "b": jnp.ones(3)}
    return jax.tree.map(lambda x: x.astype(dtype), p)


def gradients(params, i=0):
    return jax.tree.map(lambda p: jnp.sin(3 * p + i).astype(p.dtype), params)


EXTRA = {"value": jnp.float32(1.0)}  # for those that read the loss


def run(tx, params, steps=3, jit=True) -> tuple[Any, Any]:
    tx = stepax.with_extra_args_support(tx)
    step = lambda g, s, p: tx.update(g, s, p, **EXTRA)
    step, init = (jax.jit(step), jax.jit(tx.init)) if jit else (step, tx.init)
    state = init(params)
    for i in range(steps):
        u, state = step(gradients(params, i), state, params)
        params = stepax.apply_updates(params, u)
    return params, state


def run_by_operation(tx, params, steps=3) -> tuple[Any, Any]:
    """As `run`, but what is compiled are operations, once for all optimizers."""
    with jax.disable_jit():
        return run(tx, params, steps, jit=False)


def assert_close(found, wanted, rtol=2e-5, atol=2e-6):
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(x, y, rtol, atol)


def arguments(row):
    """The arguments of an optimizer, as `make` gives them."""
    return make(row).call.bound.arguments


class Warm:
    """A schedule that remembers, and reads a keyword."""

    def init(self):
        return jnp.zeros([], jnp.float32)

    def update(self, state, **extra_args):
        return state + extra_args.get("value", 0)

    def __call__(self, state, **extra_args):
        return 0.1 + state


def half(count):
    return 0.5


def is_matrix(params):
    return jax.tree.map(lambda p: p.ndim > 1, params)
