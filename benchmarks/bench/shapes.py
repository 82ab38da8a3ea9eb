"""Trees of parameters to measure on: only shapes, with arrays created on use."""

import itertools as it
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Shape(NamedTuple):
    """A tree of float32 arrays.

    what: a phrase that describes it.
    make: creates a tree of shapes from the divisor of all widths, 1 for full size.
    """

    what: str
    make: Callable[[int], dict]


def transformer(layers: int, d: int, prefix: str = "layer") -> dict:
    """The layers of a transformer of width d: 12 arrays each, named as in Flax."""
    layer = {
        "ln_1": {"scale": (d,), "bias": (d,)},
        "attention": {"kernel": (d, 3 * d), "bias": (3 * d,)},
        "projection": {"kernel": (d, d), "bias": (d,)},
        "ln_2": {"scale": (d,), "bias": (d,)},
        "up": {"kernel": (d, 4 * d), "bias": (4 * d,)},
        "down": {"kernel": (4 * d, d), "bias": (d,)},
    }
    return {f"{prefix}_{i}": layer for i in range(layers)}


def gpt2(layers: int, d: int, tokens: int, positions: int) -> dict:
    """GPT-2: the layers, two tables and the last normalization."""
    tables = {"tokens": (tokens, d), "positions": (positions, d)}
    return {
        **transformer(layers, d),
        "ln_f": {"scale": (d,), "bias": (d,)},
        **tables,
    }


def vit(layers: int, d: int) -> dict:
    """A vision transformer for patches of 16 by 16 pixels and 1,000 classes."""
    return {
        "patches": {"kernel": (16 * 16 * 3, d), "bias": (d,)},
        "positions": (197, d),
        **transformer(layers, d),
        "ln_f": {"scale": (d,), "bias": (d,)},
        "head": {"kernel": (d, 1000), "bias": (1000,)},
    }


def resnet50(divisor: int) -> dict:
    """ResNet-50, of He et al. 2015: 161 arrays."""
    tree: dict = {"stem": _convolution(7, 3, 64 // divisor)}
    before = 64 // divisor
    for stage, (blocks, width) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)]):
        width = width // divisor
        for block in range(blocks):
            tree[f"stage_{stage}_{block}"] = _block(before, width, is_first=block == 0)
            before = 4 * width
    tree["head"] = {"kernel": (before, 1000 // divisor), "bias": (1000 // divisor,)}
    return tree


def _block(before, width, is_first):
    after = 4 * width
    block = {
        "reduce": _convolution(1, before, width),
        "middle": _convolution(3, width, width),
        "expand": _convolution(1, width, after),
    }
    return block | ({"shortcut": _convolution(1, before, after)} if is_first else {})


def _convolution(size, before, after):
    kernel = (size, size, before, after)
    return {"kernel": kernel, "scale": (after,), "bias": (after,)}


def stack(leaves: int, d: int) -> dict:
    """Exactly this many arrays of a transformer of width d."""
    tree = transformer(-(-leaves // 12), d)
    paths = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_shape)
    named = ((jax.tree_util.keystr(path), shape) for path, shape in paths)
    return dict(it.islice(named, leaves))


SHAPES = {
    "large": Shape(
        "16 arrays, 64 million parameters",
        lambda n: {f"w{i:02}": (2000 // n, 2000 // n) for i in range(16)},
    ),
    "small": Shape(
        "600 small arrays, 1.2 million parameters", lambda n: stack(600 // n, 44)
    ),
    "many": Shape(
        "2,000 small arrays, 1 million parameters", lambda n: stack(2000 // n, 22)
    ),
    "gpt2": Shape(
        "GPT-2 small, 148 arrays, 124 million parameters",
        lambda n: gpt2(12 // min(n, 6), 768 // n, 50257 // n, 1024 // n),
    ),
    "gpt1b": Shape(
        "a GPT of 24 layers, 292 arrays, 1.0 billion parameters",
        lambda n: gpt2(24 // min(n, 12), 1792 // n, 50257 // n, 1024 // n),
    ),
    "resnet50": Shape("ResNet-50, 161 arrays, 26 million parameters", resnet50),
    "vit": Shape(
        "a ViT of 6 layers, 79 arrays, 11 million parameters",
        lambda n: vit(6 // min(n, 3), 384 // n),
    ),
    "gpt256": Shape(
        "a GPT of 4 layers of width 256, 48 arrays, 3 million parameters",
        lambda n: transformer(4 // min(n, 4), 256 // n),
    ),
}


def is_shape(x: Any) -> bool:
    """Whether `x` is a leaf of a tree of shapes."""
    return isinstance(x, tuple)


def filled(tree: dict, seed: int, scale: float = 1.0, dtype: Any = np.float32) -> dict:
    """NumPy arrays of normal samples, which both JAX and PyTorch accept.

    Samples repeat after about a million, since drawing a billion would take longer than
    the measurement.
    """
    random = np.random.default_rng(seed)
    numbers = random.standard_normal(min(size(tree)[1], 2**20 + 7), np.float32)
    numbers = (numbers * np.float32(scale)).astype(dtype)
    start = it.accumulate(map(math.prod, _shapes(tree)), initial=0)
    array = lambda shape: np.resize(np.roll(numbers, -next(start)), shape)
    return jax.tree.map(array, tree, is_leaf=is_shape)


def abstract(tree: dict, dtype: Any = jnp.float32) -> dict:
    """The tree of `jax.ShapeDtypeStruct`s for tracing."""
    as_array = lambda shape: jax.ShapeDtypeStruct(shape, dtype)
    return jax.tree.map(as_array, tree, is_leaf=is_shape)


def size(tree: dict) -> tuple[int, int]:
    """The number of arrays and the number of elements of a tree of shapes."""
    shapes = _shapes(tree)
    return len(shapes), sum(map(math.prod, shapes))


def _shapes(tree):
    return jax.tree.leaves(tree, is_leaf=is_shape)
