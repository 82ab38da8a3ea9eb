"""A transformation of one's own, and functions of states."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import stepax


class CountState(NamedTuple):
    steps: jax.Array


def counted() -> optax.GradientTransformation:
    def init(params: Any) -> CountState:
        return CountState(jnp.zeros([], jnp.int32))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, CountState]:
        return updates, CountState(state.steps + 1)

    return optax.GradientTransformation(init, update)


def own() -> stepax.GradientTransformation:
    inner = stepax.scale(0.5)
    return stepax.GradientTransformation(inner.init, inner.update)


def moments(state: optax.ScaleByAdamState) -> tuple[optax.Updates, optax.Updates]:
    return state.mu, state.nu


def is_empty(state: optax.EmptyState | optax.MaskedNode) -> bool:
    return isinstance(state, (stepax.EmptyState, optax.MaskedNode))


def inner_of(state: optax.InjectHyperparamsState) -> optax.OptState:
    return state.inner_state


params = {"w": jnp.ones(3)}
tx = stepax.chain(counted(), own(), stepax.adam(1e-3))
state = tx.init(params)
counts = stepax.ScaleByAdamState(jnp.zeros([], jnp.int32), params, params)
mu, nu = moments(counts)
both = moments(optax.ScaleByAdamState(jnp.zeros([], jnp.int32), params, params))
empty = is_empty(stepax.EmptyState()), is_empty(stepax.MaskedNode())
step: jax.Array = counts.count
trained: jax.Array = stepax.tree.get(tx.init(params), "mu/w")
