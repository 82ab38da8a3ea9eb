"""An optimizer of one's own: eight lines for one array, and it trains any tree.

Adam's second moment is replaced by a running mean of |g|.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import stepax
from stepax.rules import COUNT, Rule, Slot, rule

from .shared import Canvas, apply, dense, run, train


class AbsState(NamedTuple):
    """count: steps taken.  mu, size: running means of g and |g|."""

    count: Any
    mu: Any
    size: Any


@rule()
def absolute_adam(learning_rate: float, b1: float = 0.9, b2: float = 0.99):
    """Divide the running mean of the gradient by that of its size."""

    def leaf(g, p, ctx, mu, size):
        mu = b1 * mu + (1 - b1) * g
        size = b2 * size + (1 - b2) * jnp.abs(g)
        return -learning_rate * mu / (size + 1e-6), mu, size

    slots = {"mu": Slot(), "size": Slot(is_positive=True)}
    return Rule(leaf, AbsState, slots, COUNT, elementwise=True)


def main(small: bool) -> Canvas:
    x = jnp.linspace(-3, 3, 64)[:, None]
    loss = lambda p, key: jnp.mean((apply(p, x) - jnp.sin(2 * x)) ** 2)
    steps, curves = 20 if small else 600, {}
    for name, tx in {
        "Adam": stepax.adam(3e-3),
        "our own": absolute_adam(3e-3),
        "our own, fixed biases": stepax.partition(
            {"own": absolute_adam(3e-3), "fixed": stepax.set_to_zero()},
            {"*/bias": "fixed", "**": "own"},
        ),
    }.items():
        params = dense(jax.random.key(0), 1, 32, 1)
        _, curves[name] = train(loss, params, tx, steps)
    print(stepax.describe(absolute_adam(3e-3), dense(jax.random.key(0), 1, 32, 1)))
    return Canvas(title="Adam and our own").curves(curves, log=True)


if __name__ == "__main__":
    run(main)
