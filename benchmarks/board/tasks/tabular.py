"""Two tables that scikit-learn makes: Friedman's first, a regression, and that of
Hastie, Tibshirani and Friedman's example 10.2, two classes; 10 columns, no noise.

A network of two hidden layers for each, 2,883 numbers.  The loss is the squared error
over the variance plus the cross-entropy, on 4,096 rows and validated on 1,024.

The tables that scikit-learn holds do not tell optimizers apart: on diabetes and breast
cancer in ten folds the loss was 0.60 to 0.73, with deviations of 0.11 to 0.22, and
the methods that fit soonest overfitted soonest.
"""

import jax
import jax.numpy as jnp
import numpy as np

from . import Task, cross_entropy, dense, layer, rows


COLUMNS, TRAIN, HELD_OUT = 10, 4096, 1024
SHAPES = {"value_a": (COLUMNS, 32), "value_b": (32, 32), "value_c": (32, 1)}
SHAPES |= {"class_a": (COLUMNS, 32), "class_b": (32, 32), "class_c": (32, 2)}


def make() -> Task:
    from sklearn.datasets import make_friedman1, make_hastie_10_2

    count = TRAIN + HELD_OUT
    x, y = make_friedman1(count, COLUMNS, noise=0, random_state=0)
    z, kind = make_hastie_10_2(count, random_state=0)
    numbers = *map(scaled, (x, y, z)), (kind > 0).astype(np.int32)
    data = tuple(map(jnp.asarray, numbers))
    train, held_out = [a[:TRAIN] for a in data], [a[TRAIN:] for a in data]

    def loss(params, key):
        return both(params, *rows(key, 64, *train))

    return Task(
        steps=300,
        init=lambda key: dense(key, SHAPES),
        loss=loss,
        validate=lambda params: both(params, *held_out),
        worst=1 + float(np.log(2)),
        data=data,
    )


def scaled(x: np.ndarray) -> np.ndarray:
    return ((x - x.mean(0)) / x.std(0)).astype(np.float32)


def network(params: dict, name: str, x: jax.Array) -> jax.Array:
    for part in "ab":
        x = jnp.tanh(layer(params, f"{name}_{part}", x))
    return layer(params, f"{name}_c", x)


def both(params, x, y, z, kind):
    square = jnp.mean(jnp.square(network(params, "value", x)[..., 0] - y))
    return square + cross_entropy(network(params, "class", z), kind)
