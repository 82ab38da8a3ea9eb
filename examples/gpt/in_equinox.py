"""The GPT in Equinox."""

import equinox as eqx
import jax


# The paths of the matrices that Muon trains.
LAYERS = ("query", "key", "value", "out", "up", "down")
MATRICES = tuple(f"blocks/*/{layer}/weight" for layer in LAYERS)


class Block(eqx.Module):
    norm1: eqx.nn.LayerNorm
    norm2: eqx.nn.LayerNorm
    query: eqx.nn.Linear
    key: eqx.nn.Linear
    value: eqx.nn.Linear
    out: eqx.nn.Linear
    up: eqx.nn.Linear
    down: eqx.nn.Linear
    heads: int = eqx.field(static=True)

    def __init__(self, width, heads, key):
        keys = iter(jax.random.split(key, 6))
        linear = lambda m, n: eqx.nn.Linear(m, n, key=next(keys))
        self.heads = heads
        self.norm1, self.norm2 = eqx.nn.LayerNorm(width), eqx.nn.LayerNorm(width)
        self.query, self.key = linear(width, width), linear(width, width)
        self.value, self.out = linear(width, width), linear(width, width)
        self.up, self.down = linear(width, 4 * width), linear(4 * width, width)

    def __call__(self, x):
        """x: (context, width)"""
        read = jax.vmap(self.norm1)(x)
        of_heads = lambda layer: jax.vmap(layer)(read).reshape(len(x), self.heads, -1)
        q, k, v = map(of_heads, (self.query, self.key, self.value))
        found = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + jax.vmap(self.out)(found.reshape(x.shape))
        up = jax.vmap(lambda row: jax.nn.gelu(self.up(self.norm2(row))))(x)
        return x + jax.vmap(self.down)(up)


class GPT(eqx.Module):
    characters: eqx.nn.Embedding
    places: eqx.nn.Embedding
    blocks: list[Block]
    norm: eqx.nn.LayerNorm
    head: eqx.nn.Linear

    def __init__(self, size, key):
        first, second, last, *keys = jax.random.split(key, 3 + size.layers)
        self.characters = eqx.nn.Embedding(size.alphabet, size.width, key=first)
        self.places = eqx.nn.Embedding(size.context, size.width, key=second)
        self.blocks = [Block(size.width, size.heads, key) for key in keys]
        self.norm = eqx.nn.LayerNorm(size.width)
        self.head = eqx.nn.Linear(size.width, size.alphabet, key=last)

    def __call__(self, indices):
        """Logits (context, alphabet) for indices (context,)."""
        x = jax.vmap(self.characters)(indices) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return jax.vmap(lambda row: self.head(self.norm(row)))(x)


def create(size, key):
    """The parameters, and a function from them and indices to logits."""
    params, rest = eqx.partition(GPT(size, key), eqx.is_array)
    return params, lambda params, x: jax.vmap(eqx.combine(params, rest))(x)
