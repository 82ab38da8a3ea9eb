"""What `python -m studies.low_bit` trains: digits, and a transformer on text.

A task draws its first parameters from a key, and has a loss, batches for it, and the
examples over which the loss is measured at the end.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from examples.demo.digits import load


WIDE = jnp.dtype("float32")


class Task(NamedTuple):
    """A loss and its data.

    steps: of training.
    first: key -> parameters.
    loss: (parameters, batch) -> loss.
    draw: key -> batch.
    whole: the batch of the last loss.
    """

    steps: int
    first: Callable
    loss: Callable
    draw: Callable
    whole: Any


def _matrices(key: jax.Array, shapes: dict[str, tuple[int, int]]) -> dict:
    keys = jax.random.split(key, len(shapes))
    draw = lambda k, n, m: jax.random.normal(k, (n, m)) * (2 / n) ** 0.5
    return {name: draw(k, *shapes[name]) for k, name in zip(keys, shapes, strict=True)}


def _cross_entropy(logits: jax.Array, y: jax.Array) -> jax.Array:
    logits = jax.nn.log_softmax(logits.astype(WIDE))
    return -jnp.mean(jnp.take_along_axis(logits, y[..., None], -1))


def digits(batch: int = 64) -> Task:
    """A network of three layers and 84,000 parameters."""
    images, labels = load()[0]
    x, y = jnp.asarray(images.reshape(len(images), -1)), jnp.asarray(labels)
    shapes = {"a": (64, 256), "b": (256, 256), "c": (256, 10)}

    def loss(params, batch):
        x, y = batch
        for name in "ab":
            x = jax.nn.relu(x.astype(params[name].dtype) @ params[name])
        return _cross_entropy(x @ params["c"], y)

    def draw(key):
        rows = jax.random.randint(key, (batch,), 0, len(x))
        return x[rows], y[rows]

    return Task(500, lambda key: _matrices(key, shapes), loss, draw, (x, y))


# Characters, width, heads, layers, context.
CHARACTERS, WIDTH, HEADS, LAYERS, CONTEXT = 128, 64, 4, 2, 32


def text(batch: int = 8) -> Task:
    """A character transformer of 117,000 parameters, on the text of Python's `help`."""
    from pydoc_data import topics

    whole = "".join(topics.topics[name] for name in sorted(topics.topics))
    data = jnp.asarray(np.frombuffer(whole.encode("ascii", "replace"), np.uint8))
    shapes = {"embedding": (CHARACTERS, WIDTH), "position": (CONTEXT, WIDTH)}
    for n in range(LAYERS):
        shapes |= {f"qkv{n}": (WIDTH, 3 * WIDTH), f"out{n}": (WIDTH, WIDTH)}
        shapes |= {f"up{n}": (WIDTH, 4 * WIDTH), f"down{n}": (4 * WIDTH, WIDTH)}
    shapes["head"] = WIDTH, CHARACTERS

    def draw(key, batch=batch):
        at = jax.random.randint(key, (batch, 1), 0, len(data) - CONTEXT - 1)
        rows = data[at + jnp.arange(CONTEXT + 1)].astype(jnp.int32)
        return rows[:, :-1], rows[:, 1:]

    first = lambda key: _matrices(key, shapes)
    return Task(200, first, _text_loss, draw, draw(jax.random.key(0), 256))


def _text_loss(params: dict, batch: Any) -> jax.Array:
    tokens, wanted = batch
    x = params["embedding"][tokens] + params["position"]
    for n in range(LAYERS):
        x = x + _attention(_normal(x) @ params[f"qkv{n}"]) @ params[f"out{n}"]
        x = x + jax.nn.gelu(_normal(x) @ params[f"up{n}"]) @ params[f"down{n}"]
    return _cross_entropy(_normal(x) @ params["head"], wanted)


def _normal(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6)


def _attention(qkv: jax.Array) -> jax.Array:
    split = lambda x: x.reshape(*x.shape[:-1], HEADS, -1)
    q, k, v = map(split, jnp.split(qkv, 3, -1))
    mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    return mixed.reshape(*mixed.shape[:-2], -1)
