"""Language: a transformer of one block learns the letters of a text.

The text is Python's own documentation; `make gpt` trains a larger one.
"""

import pydoc_data.topics

import jax
import jax.numpy as jnp

import stepax

from .shared import Canvas, run, train


LENGTH, WIDTH = 32, 32


def logits(params, letters):
    x = params["letters"][letters] + params["places"]
    q, k, v = jnp.split(x @ params["attention"], 3, -1)
    scores = q @ k.mT / WIDTH**0.5
    scores = jnp.where(jnp.tri(LENGTH, dtype=bool), scores, -1e9)
    x = x + jax.nn.softmax(scores) @ v
    x = x + jax.nn.gelu(x @ params["up"]) @ params["down"]
    return x @ params["letters"].T


def init(key):
    keys = jax.random.split(key, 5)
    of = lambda k, *shape: jax.random.normal(k, shape) * shape[0] ** -0.5
    return {
        "letters": 0.1 * of(keys[0], 128, WIDTH),
        "places": 0.1 * of(keys[1], LENGTH, WIDTH),
        "attention": of(keys[2], WIDTH, 3 * WIDTH),
        "up": of(keys[3], WIDTH, 4 * WIDTH),
        "down": of(keys[4], 4 * WIDTH, WIDTH),
    }


def main(small: bool) -> Canvas:
    text = " ".join(pydoc_data.topics.topics.values()).encode("ascii", "replace")
    letters = jnp.asarray(list(text[:100_000]), jnp.int32)

    def loss(params, key):
        at = jax.random.randint(key, (16, 1), 0, len(letters) - LENGTH - 1)
        found = letters[at + jnp.arange(LENGTH + 1)]
        return stepax.softmax_cross_entropy_with_integer_labels(
            logits(params, found[:, :-1]), found[:, 1:]
        ).mean()

    steps, curves = 20 if small else 400, {}
    rate = stepax.warmup_cosine_decay_schedule(0.0, 1.0, steps // 10, steps)
    by_path = {"letters": "adam", "places": "adam", "**": "muon"}
    both = {
        "adam": stepax.adamw(lambda t: 1e-2 * rate(t)),
        "muon": stepax.contrib.muon(lambda t: 2e-2 * rate(t)),
    }
    for name, tx in {
        "AdamW": both["adam"], "Muon for matrices": stepax.partition(both, by_path)
    }.items():  # fmt: skip
        _, curves[name] = train(loss, init(jax.random.key(0)), tx, steps)
    return Canvas(title="Loss for each letter").curves(curves)


if __name__ == "__main__":
    run(main)
