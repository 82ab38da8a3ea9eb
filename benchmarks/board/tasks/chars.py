"""The next character of the English text that ships with Python, `pydoc_data.topics`.

A transformer of two layers of width 32 with two heads, on 32 characters; cross-entropy.
The text differs between versions of Python: its hash is recorded, and runs with another
one are not compared.
"""

import jax
import jax.numpy as jnp
import numpy as np

from . import Task, cross_entropy


WIDTH, HEADS, LAYERS, CONTEXT, BATCH = 32, 2, 2, 32, 8


def make() -> Task:
    from pydoc_data import topics

    text = "".join(topics.topics[name] for name in sorted(topics.topics))
    known, codes = np.unique(list(text), return_inverse=True)
    text = jnp.asarray(codes, jnp.int32)
    size, part = len(known), len(codes) // 10
    at = np.linspace(0, part - CONTEXT - 1, 64).astype(int)[:, None]
    held_out = text[at + np.arange(CONTEXT + 1)]

    def init(key):
        shapes = {"embedding": (size, WIDTH), "position": (CONTEXT, WIDTH)}
        for n in range(LAYERS):
            shapes |= {f"qkv{n}": (WIDTH, 3 * WIDTH), f"out{n}": (WIDTH, WIDTH)}
            shapes |= {f"up{n}": (WIDTH, 2 * WIDTH), f"down{n}": (2 * WIDTH, WIDTH)}
        shapes["head"] = WIDTH, size
        keys = jax.random.split(key, len(shapes))
        draw = lambda key, n, m: jax.random.normal(key, (n, m)) / n**0.5
        made = zip(keys, shapes.items(), strict=True)
        params = {name: draw(key, *shape) for key, (name, shape) in made}
        scales = {f"scale{n}": jnp.ones(WIDTH) for n in range(2 * LAYERS + 1)}
        return params | scales

    def loss(params, key):
        at = jax.random.randint(key, (BATCH, 1), part, len(text) - CONTEXT - 1)
        return mean_loss(params, text[at + jnp.arange(CONTEXT + 1)])

    validate = lambda params: mean_loss(params, held_out)
    return Task(1000, init, loss, validate, float(np.log(size)), (text,))


def mean_loss(params: dict, text: jax.Array) -> jax.Array:
    x = params["embedding"][text[:, :-1]] + params["position"]
    for n in range(LAYERS):
        h = normal(x) * params[f"scale{2 * n}"]
        x = x + attention(h @ params[f"qkv{n}"]) @ params[f"out{n}"]
        h = normal(x) * params[f"scale{2 * n + 1}"]
        x = x + jax.nn.relu(h @ params[f"up{n}"]) @ params[f"down{n}"]
    x = normal(x) * params[f"scale{2 * LAYERS}"]
    return cross_entropy(x @ params["head"], text[:, 1:])


def normal(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6)


def attention(qkv: jax.Array) -> jax.Array:
    split = lambda x: x.reshape(*x.shape[:-1], HEADS, -1)
    q, k, v = map(split, jnp.split(qkv, 3, -1))
    mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    return mixed.reshape(*mixed.shape[:-2], -1)
