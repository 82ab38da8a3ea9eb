"""Let a model go on with a text."""

import jax
import jax.numpy as jnp


def write(logits, params, prompt, count, key, temperature=0.7):
    """`count` further indices, each drawn from what the model says of the last ones.

    prompt: (context,) indices.
    """

    def step(window, key):
        last = logits(params, window[None])[0, -1].astype(jnp.float32)
        drawn = jax.random.categorical(key, last / temperature).astype(window.dtype)
        return jnp.append(window[1:], drawn), drawn

    scan = jax.jit(lambda *args: jax.lax.scan(step, *args)[1])
    return scan(jnp.asarray(prompt), jax.random.split(key, count))
