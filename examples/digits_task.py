"""Handwritten digits, a network for them, and its loss."""

import jax
import jax.numpy as jnp
import numpy as np

import stepax


SIZES = 64, 512, 512, 10
BATCH = 120  # may be split over 2, 3, 4, 5, 6, 8, 10 or 12 devices


def load():
    """Images (n, 64) and labels; every fifth is held out for testing."""
    from sklearn.datasets import load_digits  # which the launcher need not wait for

    pixels, labels = load_digits(return_X_y=True)
    images, labels = (pixels / 16).astype(np.float32), labels.astype(np.int32)
    test = np.arange(len(labels)) % 5 == 0
    return (images[~test], labels[~test]), (images[test], labels[test])


def batch(data, step):
    """The batch depends only on the step, so a restarted run sees the same one."""
    n = len(data[0])
    epoch, i = divmod(step, n // BATCH)
    rows = np.random.default_rng(epoch).permutation(n)[i * BATCH :][:BATCH]
    return [x[rows] for x in data]


def network():
    normal = np.random.default_rng(0).standard_normal
    weight = lambda m, n: normal((m, n), np.float32) * (2 / m) ** 0.5
    layer = lambda m, n: {"weight": weight(m, n), "bias": np.zeros(n, np.float32)}
    return list(map(layer, SIZES, SIZES[1:]))


def logits(params, x):
    *hidden, last = params
    for layer in hidden:
        x = jax.nn.relu(x @ layer["weight"] + layer["bias"])
    return (x @ last["weight"] + last["bias"]).reshape(-1, SIZES[-1])  # of an island


def loss(params, images, labels):
    found = stepax.losses.softmax_cross_entropy_with_integer_labels
    return jnp.mean(found(logits(params, images), labels))
