"""Transformations of both libraries in one chain, a half moved program."""

import jax
import jax.numpy as jnp
import optax

import stepax


params = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}
tx = optax.chain(optax.clip(1.0), stepax.adamw(1e-3))
reverse = stepax.chain(optax.clip(1.0), stepax.adamw(1e-3))
named = optax.named_chain(("clip", stepax.clip(1.0)), ("adam", optax.adam(1e-3)))
masked = optax.masked(stepax.add_decayed_weights(0.1), {"w": True, "b": False})
several = optax.MultiSteps(stepax.lion(1e-3), every_k_schedule=2)
finite = optax.apply_if_finite(stepax.adam(1e-3), max_consecutive_errors=3)
grouped = optax.partition(
    {"w": stepax.adam(1e-3), "b": optax.sgd(0.1)}, {"w": "w", "b": "b"}
)
averaged = optax.lookahead(stepax.sgd(0.1), sync_period=5, slow_step_size=0.5)
state = tx.init(params)
updates, state = tx.update(params, state, params)
moved = optax.apply_updates(params, updates)
trained: jax.Array = optax.tree.norm(moved)
norm: jax.Array = stepax.tree.norm(moved)
