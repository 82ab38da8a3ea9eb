"""Poisson's equation on the unit square, by a network whose relative residual is
the loss.

    u_xx + u_yy = f,   u = 0 at the edges,   f such that u = sin(pi x) sin(2 pi y)

Two hidden layers of 32 tanh, 1,185 numbers; both derivatives are forward ones.  The
validation loss is the relative error of u on a grid.
"""

import jax
import jax.numpy as jnp
import numpy as np

from . import Task, dense, layer


SHAPES = {"first": (2, 32), "second": (32, 32), "last": (32, 1)}


def make() -> Task:
    axis = np.linspace(0, 1, 18)[1:-1]
    grid = jnp.asarray(np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2), "float32")
    wanted = exact(grid)

    def loss(params, key):
        points = jax.random.uniform(key, (64, 2))
        f = -5 * jnp.pi**2 * exact(points)
        mean_square = 25 * jnp.pi**4 / 4  # of f over the square
        return jnp.mean(jnp.square(laplacian(params, points) - f)) / mean_square

    def validate(params):
        off = value(params, grid) - wanted
        return jnp.sqrt(jnp.sum(jnp.square(off)) / jnp.sum(jnp.square(wanted)))

    return Task(500, lambda key: dense(key, SHAPES), loss, validate, worst=1.0)


def exact(points: jax.Array) -> jax.Array:
    x, y = points[..., 0], points[..., 1]
    return jnp.sin(jnp.pi * x) * jnp.sin(2 * jnp.pi * y)


def value(params: dict, points: jax.Array) -> jax.Array:
    h = jnp.tanh(layer(params, "first", 2 * points - 1))
    h = jnp.tanh(layer(params, "second", h))
    edge = jnp.prod(4 * points * (1 - points), -1)
    return edge * layer(params, "last", h)[..., 0]


def laplacian(params: dict, points: jax.Array) -> jax.Array:
    u = lambda points: value(params, points)

    def second(axis):
        along = jnp.zeros_like(points).at[..., axis].set(1)
        first = lambda points: jax.jvp(u, (points,), (along,))[1]
        return jax.jvp(first, (points,), (along,))[1]

    return second(0) + second(1)
