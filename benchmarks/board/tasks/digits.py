"""Handwritten digits of scikit-learn, 1,297 to train on and 500 to validate.

Two convolutions, as products of windows, and a layer: 3,642 numbers, cross-entropy.
"""

import jax
import jax.numpy as jnp
import numpy as np

from . import Task, cross_entropy, dense, layer, rows


SHAPES = {"first": (16, 16), "second": (64, 32), "last": (128, 10)}


def make() -> Task:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x = windows((pixels[order] / 16 - 0.3).astype(np.float32).reshape(-1, 8, 8))
    y = labels[order].astype(np.int32)
    data = tuple(map(jnp.asarray, (x[500:], y[500:], x[:500], y[:500])))
    x, y, *held_out = data

    def loss(params, key):
        return mean_loss(params, *rows(key, 64, x, y))

    return Task(
        steps=300,
        init=lambda key: dense(key, SHAPES),
        loss=loss,
        validate=lambda params: mean_loss(params, *held_out),
        worst=float(np.log(10)),
        data=data,
    )


def windows(images: np.ndarray) -> np.ndarray:
    """Nine windows of 4 by 4 pixels for each image, (n, 3, 3, 16)."""
    seen = np.lib.stride_tricks.sliding_window_view(images, (4, 4), (1, 2))
    return np.ascontiguousarray(seen[:, ::2, ::2]).reshape(-1, 3, 3, 16)


def mean_loss(params: dict, x: jax.Array, y: jax.Array) -> jax.Array:
    x = jax.nn.relu(layer(params, "first", x))
    corners = [x[:, i : i + 2, j : j + 2] for i in (0, 1) for j in (0, 1)]
    x = jnp.concatenate(corners, -1).reshape(-1, 4, 64)
    x = jax.nn.relu(layer(params, "second", x)).reshape(-1, 128)
    return cross_entropy(layer(params, "last", x), y)
