"""Matrix completion: 128 digits as rows of 64 pixels, of which a third is hidden.

    X = U diag(d) V',   rank 8,   d from 1 to 1/30, which makes it ill-conditioned

1,536 numbers; the loss is the mean squared error, validated on the hidden pixels.
"""

import jax
import jax.numpy as jnp
import numpy as np

from . import Task, rows


ROWS, PIXELS, RANK = 128, 64, 8


def make() -> Task:
    from sklearn.datasets import load_digits

    pixels = load_digits().data[:ROWS].astype(np.float32)
    x = (pixels - pixels.mean()) / pixels.std()
    is_hidden = np.random.default_rng(0).random(x.shape) < 1 / 3
    data = x, seen = jnp.asarray(x), jnp.asarray(1 - is_hidden, jnp.float32)
    scales = jnp.asarray(np.geomspace(1, 1 / 30, RANK), jnp.float32)

    def init(key):
        u, v = jax.random.split(key)
        draw = lambda key, n: 0.3 * jax.random.normal(key, (n, RANK))
        return {"u": draw(u, ROWS), "v": draw(v, PIXELS)}

    def error(u, v, x, weight):
        square = jnp.square(u * scales @ v.T - x)
        return jnp.sum(square * weight) / jnp.sum(weight)

    def loss(params, key):
        u, part, weight = rows(key, 32, params["u"], x, seen)
        return error(u, params["v"], part, weight)

    def validate(params):
        return error(params["u"], params["v"], x, 1 - seen)

    return Task(500, init, loss, validate, worst=1.0, data=data)
