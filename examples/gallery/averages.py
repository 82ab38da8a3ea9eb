"""Averages: the mean of the last iterates smooths a noisy run."""

import jax
import jax.numpy as jnp
import numpy as np

import stepax

from .shared import Canvas, apply, dense, run


def main(small: bool) -> Canvas:
    x = jax.random.normal(jax.random.key(1), (512, 2))
    goal = (x[:, :1] * x[:, 1:]) + 0.3 * jax.random.normal(jax.random.key(2), (512, 1))
    loss = lambda p, at: jnp.mean((apply(p, x[at]) - goal[at]) ** 2)
    tx = stepax.averages(stepax.adam(1e-2), 0.98)
    params = dense(jax.random.key(0), 2, 32, 1)
    state, every = tx.init(params), jnp.arange(256, 512)

    @jax.jit
    def step(params, state, key):
        at = jax.random.randint(key, (16,), 0, 256)
        updates, state = tx.update(jax.grad(loss)(params, at), state, params)
        params = stepax.apply_updates(params, updates)
        averaged = stepax.eval_params(state, params)
        return params, state, loss(params, every), loss(averaged, every)

    found = []
    for key in jax.random.split(jax.random.key(3), 20 if small else 400):
        params, state, *values = step(params, state, key)
        found.append(values)
    last, averaged = np.array(found, float).T
    curves = {"last parameters": last, "their average": averaged}
    return Canvas(title="Loss on held-out data").curves(curves, log=True)


if __name__ == "__main__":
    run(main)
