"""Models on which `diagnose` is to be silent, and optimizers as their pages say."""

import inspect
from typing import Any

import cases
import jax
import jax.numpy as jnp
import pytest
from inside import node_of, open_components

import stepax
import stepax.contrib
from stepax.rules import Rule


def _linear(*shape: int) -> dict[str, jax.Array]:
    return {"kernel": jnp.ones(shape), "bias": jnp.ones((*shape[:-2], shape[-1]))}


def _layer(*stack: int) -> dict[str, Any]:
    return {
        "attention": {"qkv": _linear(*stack, 32, 96), "out": _linear(*stack, 32, 32)},
        "mlp": {"up": _linear(*stack, 32, 64), "down": _linear(*stack, 64, 32)},
        "norm1": {"scale": jnp.ones((*stack, 32))},
        "norm2": {"scale": jnp.ones((*stack, 32))},
    }


def _transformer(layers: Any) -> dict[str, Any]:
    ends = {"embed": {"embedding": jnp.ones((64, 32))}, "norm": jnp.ones(32)}
    return ends | {"layers": layers, "lm_head": jnp.ones((32, 64))}


def _module() -> Any:
    eqx = pytest.importorskip("equinox")
    return eqx.nn.MLP(16, 16, 32, 2, key=jax.random.key(0))


MODELS = {
    "MLP": lambda: {"first": _linear(16, 32), "second": _linear(32, 16)},
    "transformer": lambda: _transformer([_layer(), _layer()]),
    "scanned": lambda: _transformer(_layer(4)),
    "Equinox": _module,
}


def is_for_matrices(tx: Any) -> bool:
    """Whether a part works on whole matrices."""
    return any(map(_takes_matrices, open_components(tx, None).walk()))


def _takes_matrices(part: Any) -> bool:
    node, made = node_of(part.tx), part.call
    chooses = made is not None and "weight_dimension_numbers" in made.bound.arguments
    return chooses or (isinstance(node, Rule) and bool(node.batched))


def labels(params: Any) -> Any:
    """Hidden matrices, and all others, as the pages of matrix optimizers recommend."""

    def one(path, p):
        names = jax.tree_util.keystr(path)
        is_end = "embed" in names or "lm_head" in names
        is_matrix = cases.ndim(p) > 1 and "bias" not in names and "norm" not in names
        return "matrix" if is_matrix and not is_end else "other"

    return jax.tree_util.tree_map_with_path(one, params)


STACKS = {"layers/**": 0, "**": None}
# GaLore takes no stacks.
AXES = {"galore": stepax.contrib.GaLoreDimensionNumbers((-3, -2), -1)}


def optimizer(row: Any, model: str = "") -> Any:
    """An optimizer of the registry with ordinary arguments, for matrices if for them.

    In the scanned model these are stacks, whose axes it is told.
    """
    named = inspect.signature(row.factory).parameters
    # Its default is a scaling: another optimizer there would negate a second time.
    base = named.get("base_optimizer")
    is_scaling = base is not None and base.default is None
    more: dict[str, Any] = {"base_optimizer": None} if is_scaling else {}
    tx = cases.make(row, **more)
    if not is_for_matrices(tx):
        return stepax.stacked(tx, STACKS) if model == "scanned" else tx
    axes = [x for x in named if x.endswith("weight_dimension_numbers")]
    if model == "scanned" and axes:
        last_two = stepax.contrib.MuonDimensionNumbers(-2, -1)
        tx = cases.make(row, **more, **{axes[0]: AXES.get(row.name, last_two)})
    tx = stepax.partition({"matrix": tx, "other": stepax.adamw(1e-3)}, labels)
    return stepax.stacked(tx, STACKS) if model == "scanned" and not axes else tx
