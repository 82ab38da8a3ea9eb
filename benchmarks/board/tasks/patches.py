"""An autoencoder of 8 by 8 patches of scikit-learn's two photographs, in grey.

64, 48, 16, 48, 64 with tanh, 7,920 numbers and 176 biases; the loss is the squared
error over the variance.  The right quarter of each photograph is for validation.
"""

import jax
import jax.numpy as jnp
import numpy as np

from . import Task, dense, layer, rows


SHAPES = {"a": (64, 48), "b": (48, 16), "c": (16, 48), "d": (48, 64)}


def make() -> Task:
    train, held_out = map(jnp.asarray, patches())

    def loss(params, key):
        return error(params, *rows(key, 64, train))

    def validate(params):
        return error(params, held_out)

    init = lambda key: dense(key, SHAPES)
    return Task(500, init, loss, validate, worst=1.0, data=(train, held_out))


def patches() -> tuple[np.ndarray, np.ndarray]:
    """Patches without their mean, of variance 1 on average."""
    from sklearn.datasets import load_sample_images

    images = [x.mean(-1) / 255 for x in load_sample_images().images]
    cut = [int(x.shape[1] * 3 / 4) // 8 * 8 for x in images]
    left = np.concatenate([cells(x[:, :n]) for x, n in zip(images, cut, strict=True)])
    right = np.concatenate([cells(x[:, n:]) for x, n in zip(images, cut, strict=True)])
    scale = left.std()
    keep = np.random.default_rng(0).permutation(len(right))[:512]
    return (left / scale).astype(np.float32), (right[keep] / scale).astype(np.float32)


def cells(image: np.ndarray) -> np.ndarray:
    height, width = (n // 8 * 8 for n in image.shape)
    split = image[:height, :width].reshape(height // 8, 8, width // 8, 8)
    found = split.swapaxes(1, 2).reshape(-1, 64)
    return found - found.mean(-1, keepdims=True)


def error(params: dict, x: jax.Array) -> jax.Array:
    h = x
    for name in "abc":
        h = jnp.tanh(layer(params, name, h))
    return jnp.mean(jnp.square(layer(params, "d", h) - x)) / jnp.mean(jnp.square(x))
