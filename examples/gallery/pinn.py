"""A physics-informed network solves u'' = -pi^2 sin(pi x), with u = 0 at both ends.

SOAP, whose steps follow the curvature, beside Adam.
"""

import jax
import jax.numpy as jnp

import stepax

from .shared import Canvas, apply, dense, run, train


def solution(params, x):
    return x * (1 - x) * apply(params, x[None])[0]


def main(small: bool) -> Canvas:
    points = jnp.linspace(0.0, 1.0, 64)
    second = jax.grad(jax.grad(solution, 1), 1)

    def loss(params, key):
        found = jax.vmap(second, (None, 0))(params, points)
        return jnp.mean((found + jnp.pi**2 * jnp.sin(jnp.pi * points)) ** 2)

    steps, curves = 20 if small else 500, {}
    rate = stepax.cosine_decay_schedule(1e-2, steps)
    for name, tx in {
        "Adam": stepax.adam(rate),
        "SOAP": stepax.contrib.soap(rate),
    }.items():
        params = dense(jax.random.key(0), 1, 24, 24, 1)
        params, curves[name] = train(loss, params, tx, steps)
        error = jax.vmap(solution, (None, 0))(params, points) - jnp.sin(jnp.pi * points)
        print(f"{name}: largest error {float(jnp.abs(error).max()):.1e}")
    return Canvas(title="Residual of the equation").curves(curves, log=True)


if __name__ == "__main__":
    run(main)
