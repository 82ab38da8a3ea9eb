"""Schedules of both libraries and of one's own, hyperparameters at run time."""

import jax
import jax.numpy as jnp
import optax

import stepax


def halved(count: jax.typing.ArrayLike) -> jax.Array:
    return 0.1 * 0.5 ** jnp.asarray(count, float)


def doubled(step: jax.typing.ArrayLike) -> jax.Array:
    return jnp.where(jnp.asarray(step) < 10, 1, 2)


def decayed(schedule: optax.Schedule) -> optax.GradientTransformation:
    return optax.adamw(schedule)


warm: optax.Schedule = stepax.warmup_cosine_decay_schedule(0.0, 1e-3, 10, 100)
joined: optax.Schedule = stepax.join_schedules(
    [optax.constant_schedule(0.1), stepax.linear_schedule(0.1, 0.0, 10), halved], [5, 9]
)
theirs = optax.join_schedules([warm, stepax.constant_schedule(0.1)], [5])
for tx in (
    decayed(warm),
    decayed(stepax.exponential_decay(0.1, 10, 0.9)),
    stepax.adamw(theirs),
    stepax.sgd(halved),
    optax.sgd(joined),
    stepax.chain(stepax.scale_by_adam(), stepax.scale_by_schedule(theirs)),
    optax.chain(optax.scale_by_adam(), optax.scale_by_schedule(warm)),
):
    state = tx.init(jnp.ones(3))

injected = stepax.inject_hyperparams(stepax.adamw)(learning_rate=warm, b1=0.8)
changed = optax.inject_hyperparams(stepax.adamw)(learning_rate=1e-3)
several = stepax.MultiSteps(stepax.adam(warm), every_k_schedule=doubled)
trained = warm(jnp.int32(3))
