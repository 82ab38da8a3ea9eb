"""Functions of one's own, which annotate or name their arguments as they like."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import stepax


params = {"kernel": jnp.ones((3, 2)), "bias": jnp.zeros(2)}
gradients = jax.tree.map(jnp.ones_like, params)


def decay(step: int) -> float:
    return 0.1 * 0.99**step


def decay_of_array(step: jax.Array) -> jax.Array:
    return 0.1 / (10 + step)


def every(step: jax.Array) -> jax.Array:
    return jnp.where(step < 2, 1, 2)


def is_early(step: int) -> bool:
    return step < 3


def never(g: Any, step: jax.Array, p: Any) -> tuple[bool, dict[str, int]]:
    return False, {}


def scaled(learning_rate: stepax.ScalarOrSchedule) -> stepax.GradientTransformation:
    if callable(learning_rate):
        rate = learning_rate
        return stepax.scale_by_schedule(lambda count: -rate(count))
    return stepax.scale(-learning_rate)


def updates_of(tx: stepax.GradientTransformation) -> stepax.Updates:
    return tx.update(gradients, tx.init(params), params)[0]


whole = np.int64(10)
strategy: str = "one"
search = stepax.scale_by_zoom_linesearch(whole, initial_guess_strategy=strategy)
tx = stepax.lookahead(stepax.sgd(0.1), whole, slow_step_size=0.5)
tx = stepax.adam(stepax.cosine_decay_schedule(np.float32(1e-3), decay_steps=whole))
tx = stepax.adam(decay)
tx = stepax.chain(stepax.identity(), tx, stepax.stateless_with_tree_map(lambda g, p: g))
tx = stepax.MultiSteps(tx, every, should_skip_update_fn=never).gradient_transformation()
own = stepax.GradientTransformation(lambda p: (), lambda g, s, p=None: (g, s))
labels = {"kernel": "a", "bias": "b"}
pieces = {"a": stepax.sgd(np.float32(0.1)), "b": own}
trained = [
    updates_of(tx),
    updates_of(scaled(0.1)),
    updates_of(scaled(decay_of_array)),
    updates_of(stepax.conditionally_mask(stepax.adam(1e-3), is_early)),
    updates_of(stepax.partition(pieces, labels)),
    updates_of(stepax.partition(pieces, lambda p: labels)),
]
joined = stepax.join_schedules([decay, decay_of_array], [3])
print(float(joined(2)), float(stepax.cosine_decay_schedule(0.1, 10)(2)))
