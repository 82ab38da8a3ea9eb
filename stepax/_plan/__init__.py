"""Shapes of well-known models, from their published configurations."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import PartitionSpec
from jax.tree_util import DictKey
from jax.typing import DTypeLike


@dataclass(frozen=True)
class Model:
    """A transformer with gated feed-forward networks, such as Llama 3 and Mixtral.

    layers, width: number of layers, and size of the activations between layers.
    keys: total size of all keys, and of all values.
    inner: size of the feed-forward network, or of each expert.
    tokens: size of the vocabulary.
    experts: number of experts in each layer; 0 for a dense model.
    is_tied: whether the head shares the weights of the embedding.
    """

    layers: int
    width: int
    keys: int
    inner: int
    tokens: int
    experts: int = 0
    is_tied: bool = False

    def shapes(self, dtype: DTypeLike = "float32") -> dict[str, Any]:
        """The parameters, without arrays; the layers are a list."""
        d, inner = self.width, self.inner
        stack = (self.experts,) if self.experts else ()

        def new(*shape):
            return jax.ShapeDtypeStruct(shape, dtype)

        def layer():
            router = {"router": new(d, self.experts)} if self.experts else {}
            return {
                **{name: new(d) for name in ("norm", "inner_norm")},
                **{name: new(d, d) for name in ("query", "output")},
                **{name: new(d, self.keys) for name in ("key", "value")},
                **{name: new(*stack, d, inner) for name in ("gate", "up")},
                "down": new(*stack, inner, d),
                **router,
            }

        ends = {"embedding": new(self.tokens, d), "norm": new(d)}
        head = {} if self.is_tied else {"head": new(d, self.tokens)}
        return {**ends, **head, "layers": [layer() for _ in range(self.layers)]}


MODELS = {
    "llama-1b": Model(16, 2048, 512, 8192, 128_256, is_tied=True),
    "llama-8b": Model(32, 4096, 1024, 14_336, 128_256),
    "llama-70b": Model(80, 8192, 1024, 28_672, 128_256),
    "llama-405b": Model(126, 16_384, 1024, 53_248, 128_256),
    "mixtral-8x7b": Model(32, 4096, 1024, 14_336, 32_000, experts=8),
}

# The axis that tensor parallelism shards: columns, or rows where the next product sums.
_ROWS = ("embedding", "output", "down")
_OTHERS = ("embedding", "head", "router")
AXES = ("data", "model", "expert")


def specs(shapes: Any, mesh: Mapping[str, int], *, is_split: bool = True) -> Any:
    """How parameters are usually sharded over the axes `data`, `model` and `expert`.

    Along `model` columns of matrices, or rows of the matrices that follow; along
    `expert` experts; along `data` the longest remaining axis, if `is_split`.
    """

    def spec(path, x):
        entries: list[str | None] = [None] * len(x.shape)

        def share(axis, at):
            fits = axis in mesh and x.shape[at] % mesh[axis] == 0
            return fits and entries[at] is None

        if len(x.shape) == 3 and share("expert", 0):
            entries[0] = "expert"
        model = len(x.shape) - (2 if _name(path) in _ROWS else 1)
        if len(x.shape) > 1 and share("model", model):
            entries[model] = "model"
        free = [i for i in range(len(x.shape)) if is_split and share("data", i)]
        if free:
            entries[max(free, key=lambda i: x.shape[i])] = "data"
        return PartitionSpec(*entries)

    return jax.tree_util.tree_map_with_path(spec, shapes)


def is_matrix(path: tuple, x: Any) -> bool:
    """Whether a parameter is for optimizers of whole matrices; AdamW has the others."""
    return len(x.shape) > 1 and _name(path) not in _OTHERS


def _name(path: tuple) -> str:
    return next(k.key for k in reversed(path) if isinstance(k, DictKey))


def size(model: Model) -> int:
    """The number of parameters."""
    return sum(math.prod(x.shape) for x in jax.tree.leaves(model.shapes()))
