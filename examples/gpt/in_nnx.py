"""The GPT in Flax nnx."""

import jax
from flax import nnx


# The paths of the matrices that Muon trains.
MATRICES = ("blocks/*/*/kernel",)


class Block(nnx.Module):
    def __init__(self, width, heads, rngs):
        linear = lambda m, n: nnx.Linear(m, n, rngs=rngs)
        norm = lambda: nnx.LayerNorm(width, epsilon=1e-5, rngs=rngs)
        self.heads = heads
        self.norm1, self.norm2 = norm(), norm()
        self.query, self.key = linear(width, width), linear(width, width)
        self.value, self.out = linear(width, width), linear(width, width)
        self.up, self.down = linear(width, 4 * width), linear(4 * width, width)

    def __call__(self, x):
        """x: (batch, context, width)"""
        read = self.norm1(x)
        of_heads = lambda layer: layer(read).reshape(*x.shape[:-1], self.heads, -1)
        q, k, v = map(of_heads, (self.query, self.key, self.value))
        found = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(found.reshape(x.shape))
        return x + self.down(jax.nn.gelu(self.up(self.norm2(x))))


class GPT(nnx.Module):
    def __init__(self, size, rngs):
        self.characters = nnx.Embed(size.alphabet, size.width, rngs=rngs)
        self.places = nnx.Embed(size.context, size.width, rngs=rngs)
        blocks = [Block(size.width, size.heads, rngs) for _ in range(size.layers)]
        self.blocks = nnx.List(blocks)
        self.norm = nnx.LayerNorm(size.width, epsilon=1e-5, rngs=rngs)
        self.head = nnx.Linear(size.width, size.alphabet, rngs=rngs)

    def __call__(self, indices):
        """Logits (batch, context, alphabet) for indices (batch, context)."""
        x = self.characters(indices) + self.places.embedding[...][None]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def create(size, key):
    """The parameters, and a function from them and indices to logits."""
    graph, params = nnx.split(GPT(size, nnx.Rngs(key)), nnx.Param)
    return params, lambda params, indices: nnx.merge(graph, params)(indices)
