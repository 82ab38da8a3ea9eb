"""Equinox: filtered gradients, and a step that is annotated."""

import equinox as eqx
import jax
import jax.numpy as jnp

import stepax


def loss(model: eqx.nn.MLP, x: jax.Array) -> jax.Array:
    return jnp.mean(jax.vmap(model)(x) ** 2)


@eqx.filter_jit
def step(
    model: eqx.nn.MLP,
    tx: stepax.GradientTransformation,
    state: stepax.OptState,
    x: jax.Array,
) -> tuple[eqx.nn.MLP, stepax.OptState, jax.Array]:
    value, gradients = eqx.filter_value_and_grad(loss)(model, x)
    updates, state = tx.update(gradients, state, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, updates), state, value


model = eqx.nn.MLP(2, 1, 4, 1, key=jax.random.key(0))
tx = stepax.chain(stepax.clip_by_global_norm(1.0), stepax.adam(1e-3))
state = tx.init(eqx.filter(model, eqx.is_array))
model, state, trained = step(model, tx, state, jnp.ones((4, 2)))
