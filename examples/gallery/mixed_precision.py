"""Mixed precision: bfloat16 parameters stall, unless float32 masters are kept."""

import jax
import jax.numpy as jnp

import stepax

from .shared import Canvas, apply, dense, run, train


def main(small: bool) -> Canvas:
    x = jnp.linspace(-3, 3, 128)[:, None]
    goal = jnp.sin(2 * x)
    steps, curves = 30 if small else 1500, {}

    def loss(params, key):
        return jnp.mean((apply(params, x.astype(params[0]["bias"].dtype)) - goal) ** 2)

    adam = stepax.adam(3e-3)
    whole = dense(jax.random.key(0), 1, 32, 32, 1)
    half = jax.tree.map(lambda p: p.astype("bfloat16"), whole)
    for name, params, tx in (
        ("float32", whole, adam),
        ("bfloat16", half, adam),
        ("bfloat16, masters", half, stepax.master_weights(adam, remainder=16)),
    ):
        _, losses = train(loss, params, tx, steps)
        curves[name] = jnp.convolve(losses, jnp.full(10, 0.1), mode="valid")
    return Canvas(title="Loss by the dtype of the parameters").curves(curves, log=True)


if __name__ == "__main__":
    run(main)
