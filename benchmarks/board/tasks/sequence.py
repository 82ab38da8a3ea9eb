"""`mnist1d`: curves of 40 points of ten classes, 4,000 and 1,000, which it makes.

A GRU of 32 reads four points at a time, 3,978 numbers; cross-entropy.
"""

import jax
import jax.numpy as jnp
import numpy as np

from . import Task, cross_entropy, dense, layer, rows


WIDTH, POINTS = 32, 4
SHAPES = {"gates": (POINTS + WIDTH, 2 * WIDTH), "new": (POINTS + WIDTH, WIDTH)}
SHAPES |= {"last": (WIDTH, 10)}


def make() -> Task:
    from mnist1d.data import get_dataset_args, make_dataset

    made = make_dataset(get_dataset_args())
    split = lambda x: x.astype(np.float32).reshape(len(x), -1, POINTS)
    x, held_out = split(made["x"]), split(made["x_test"])
    labels = made["y"].astype(np.int32), made["y_test"].astype(np.int32)
    data = tuple(map(jnp.asarray, (x, labels[0], held_out[:500], labels[1][:500])))
    x, y, *rest = data

    def loss(params, key):
        return mean_loss(params, *rows(key, 64, x, y))

    return Task(
        steps=500,
        init=lambda key: dense(key, SHAPES),
        loss=loss,
        validate=lambda params: mean_loss(params, *rest),
        worst=float(np.log(10)),
        data=data,
    )


def mean_loss(params: dict, x: jax.Array, y: jax.Array) -> jax.Array:
    def step(h, x):
        gates = layer(params, "gates", jnp.concatenate([x, h], -1))
        keep, reset = jnp.split(jax.nn.sigmoid(gates), 2, -1)
        new = jnp.tanh(layer(params, "new", jnp.concatenate([x, reset * h], -1)))
        return keep * h + (1 - keep) * new, None

    first = jnp.zeros((len(x), WIDTH))
    h = jax.lax.scan(step, first, x.swapaxes(0, 1))[0]
    return cross_entropy(layer(params, "last", h), y)
