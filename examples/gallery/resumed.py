"""A resumed run: stopped halfway and restored, it goes on bit by bit as if it had not.

It needs Orbax, as `stepax.checkpoint` does.
"""

import tempfile

import jax
import jax.numpy as jnp
import numpy as np

import stepax
from stepax.checkpoint import restore, save

from .shared import Canvas, apply, dense, run


def main(small: bool) -> Canvas:
    x = jnp.linspace(-3, 3, 64)[:, None]
    loss = lambda p: jnp.mean((apply(p, x) - jnp.sin(x)) ** 2)
    steps = 20 if small else 300
    tx = stepax.adamw(stepax.cosine_decay_schedule(1e-2, steps))
    start = dense(jax.random.key(0), 1, 16, 1)

    @jax.jit
    def step(params, state):
        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = tx.update(gradient, state, params)
        return stepax.apply_updates(params, updates), state, value

    def go(params, state, count):
        losses = []
        for _ in range(count):
            params, state, value = step(params, state)
            losses.append(float(value))
        return params, state, losses

    *_, whole = go(start, tx.init(start), steps)
    with tempfile.TemporaryDirectory() as folder:
        params, state, first = go(start, tx.init(start), steps // 2)
        save(folder, steps // 2, params, state)
        params, state, _ = restore(folder, tx, start)
        *_, second = go(params, state, steps - steps // 2)
    assert first + second == whole
    gap = [np.nan] * len(first)
    curves = {"in one go": whole, "resumed": gap + second}
    return Canvas(title="Loss of a run, and of one that was resumed").curves(
        curves, log=True
    )


if __name__ == "__main__":
    run(main)
