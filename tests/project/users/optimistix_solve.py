"""Optimistix: its minimiser made of a transformation."""

import jax
import jax.numpy as jnp
import optimistix as optx

import stepax


def bowl(y: jax.Array, args: jax.Array) -> jax.Array:
    return jnp.sum((y - args) ** 2)


solver = optx.OptaxMinimiser(stepax.adam(0.1), rtol=1e-4, atol=1e-4)
chained = optx.OptaxMinimiser(
    stepax.chain(stepax.clip(1.0), stepax.sgd(0.1, momentum=0.5)), 1e-4, 1e-4
)
found = optx.minimise(bowl, solver, jnp.zeros(2), args=jnp.ones(2), throw=False)
trained: jax.Array = found.value
