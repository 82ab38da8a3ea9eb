"""Flax NNX: a module, its optimizer and a jitted step."""

import jax
import jax.numpy as jnp
from flax import nnx

import stepax


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.dense = nnx.Linear(2, 3, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.dense(x)


def loss(model: Model, x: jax.Array) -> jax.Array:
    return jnp.mean(model(x) ** 2)


@nnx.jit
def step(model: Model, optimizer: nnx.Optimizer, x: jax.Array) -> jax.Array:
    value, gradients = nnx.value_and_grad(loss)(model, x)
    optimizer.update(model, gradients)
    return value


model = Model(nnx.Rngs(0))
tx = stepax.chain(stepax.clip_by_global_norm(1.0), stepax.adamw(1e-3))
optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
other = nnx.Optimizer(model, stepax.adamw(1e-3), wrt=nnx.Param)
accumulated = stepax.MultiSteps(tx, 2).gradient_transformation()
third = nnx.Optimizer(model, accumulated, wrt=nnx.Param)
trained = step(model, optimizer, jnp.ones((4, 2)))
