"""Flax Linen: `TrainState`, and one of one's own."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.training.train_state import TrainState

import stepax


class Model(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(3)(x)


class AveragedState(TrainState):
    average: Any = None


model, x = Model(), jnp.ones((4, 2))
params = model.init(jax.random.key(0), x)["params"]
tx = stepax.adamw(stepax.cosine_decay_schedule(1e-3, 100), weight_decay=0.1)
state = TrainState.create(apply_fn=model.apply, params=params, tx=tx)
averaged = AveragedState.create(
    apply_fn=model.apply,
    params=params,
    tx=stepax.chain(stepax.clip(1.0), stepax.lion(1e-4)),
    average=params,
)


@jax.jit
def step(state: TrainState, x: jax.Array) -> tuple[TrainState, jax.Array]:
    def loss(params):
        return jnp.mean(state.apply_fn({"params": params}, x) ** 2)

    value, gradients = jax.value_and_grad(loss)(state.params)
    return state.apply_gradients(grads=gradients), value


state, trained = step(state, x)
averaged, _ = step(averaged, x)
