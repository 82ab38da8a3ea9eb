"""The tables that the tests are products of: factories, trees, dtypes.

A factory is built from its row in the registry.  Arguments that have no default are
looked up by name in `ARGUMENTS`; a new name is added there, or in the registry's table
of examples if its value is no function.
"""

import functools as ft
import inspect
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arguments import EXAMPLES, example
from inside import ROWS, Row, node_of, open_components, transformation, with_call

import stepax
import stepax.contrib
from stepax.rules import Rule


def ndim(p: Any) -> int:
    return getattr(p, "ndim", 0)  # of functions and numbers, too


ARGUMENTS = {
    **EXAMPLES,
    "layers": lambda path: 0,
    "step_size_fn": stepax.linear_schedule(0.5, 0.1, 10),
    "f": lambda updates, params=None: updates,
    "axes": {"**": None},
    "mask": lambda params: jax.tree.map(lambda p: ndim(p) > 0, params),
    "freeze_mask": lambda params: jax.tree.map(lambda p: ndim(p) == 0, params),
    "should_transform_fn": lambda step, **extra: step % 2 == 0,
    "transforms": lambda: {"a": stepax.adamw(1e-2), "b": stepax.sgd(1e-2)},
    "param_labels": lambda params: jax.tree.map(
        lambda p: "a" if ndim(p) > 1 else "b", params
    ),
    "inner": lambda: stepax.adamw(1e-2),
    "optimizer": lambda: stepax.adamw(1e-2),
    "adv_optimizer": lambda: stepax.sgd(1e-2),
    "outer_optimizer": lambda: stepax.sgd(0.7, momentum=0.9, nesterov=True),
    "base_optimizer": lambda: stepax.rmsprop(1e-2),
    "fast_optimizer": lambda: stepax.adamw(1e-2),
    "args": lambda: (stepax.clip_by_global_norm(1.0), stepax.adamw(1e-2)),
    "measure": stepax.tree.norm,
    "measures": lambda: {"norm": stepax.tree.norm},
    "metrics": lambda: {"norm": lambda before, after, params: stepax.tree.norm(after)},
    "hessian_diagonal_fn": stepax.scale(1.0),  # the default reads the loss function
    "linesearch": stepax.scale(1.0),  # as does this one
}

# Arguments that are made for each use, because they need the library whole.
MADE = ("transforms", "inner", "optimizer", "args", "measures", "metrics")
MADE += ("adv_optimizer", "base_optimizer", "fast_optimizer", "outer_optimizer")


def make(row: Row, **more: Any) -> Any:
    """A transformation of a row, with ordinary arguments."""
    row = beside_others(row)
    parameters = inspect.signature(row.factory).parameters.values()
    args, kwargs = [], dict(example(row)) | more
    for p in parameters:
        if p.kind is p.VAR_POSITIONAL:
            args = list(ARGUMENTS["args"]())
            if row.name == "named_chain":  # the only one that takes pairs
                args = [(str(i), tx) for i, tx in enumerate(args)]
        elif p.kind is p.KEYWORD_ONLY and p.default is None:
            continue  # an option that is not used
        elif (
            p.default in (p.empty, None)
            or isinstance(p.default, stepax.GradientTransformation)
            or p.name == "hessian_diagonal_fn"
        ) and p.name in ARGUMENTS.keys() - kwargs.keys():
            value = ARGUMENTS[p.name]
            kwargs[p.name] = value() if p.name in MADE else value
    try:
        tx = row.factory(*args, **kwargs)
    except TypeError as error:
        unknown = [p.name for p in parameters if is_needed(p) and p.name not in kwargs]
        hint = "needs values of these arguments for tests: in `EXAMPLES` in"
        is_said = any(name in str(error) for name in unknown)
        assert not is_said, f"`{row.name}` {hint} tests/arguments.py: {unknown}"
        raise
    return on_fast_parameters(tx) if "fast_optimizer" in kwargs else tx


def is_needed(p: inspect.Parameter) -> bool:
    return p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)


def beside_others(row: Row) -> Row:
    """`row`, or of a factory that refuses vectors, one that leaves them to another."""
    if not row.matrices_only or hasattr(row.factory, "refusing"):
        return row
    others = stepax.identity() if row.kind == "transform" else stepax.sgd(1e-2)
    is_matrix = lambda p: "matrix" if ndim(p) == 2 else "other"
    labels = lambda params: jax.tree.map(is_matrix, params)

    # Without the attributes by which the factory itself would be found again.
    @ft.wraps(row.factory, updated=())
    def factory(*args, **kwargs):
        tx = row.factory(*args, **kwargs)
        both: Any = stepax.partition({"matrix": tx, "other": others}, labels)
        return with_call(both, tx.call)

    vars(factory)["__signature__"] = inspect.signature(row.factory)
    vars(factory)["refusing"] = vars(factory).pop("__wrapped__")
    return replace(row, factory=factory)


def on_fast_parameters(tx: Any) -> Any:
    """`tx`, which takes pairs of fast and slow parameters, for the fast ones alone."""
    pair = stepax.LookaheadParams.init_synced

    def update(updates, state, params=None, **extra_args):
        both, state = tx.update(updates, state, pair(params), **extra_args)
        return both.fast, state

    alone = transformation(lambda params: tx.init(pair(params)), update, inner={"": tx})
    return with_call(alone, node_of(tx).call)


# Measures return no updates, aggregates take gradients of each example, and functionals
# need functions of the outputs.
OTHERS = "measure", "aggregate", "functional"


def rows(takes: str | None = None, **traits: Any) -> list:
    """Rows with these traits, as parameters of a test.

    takes: the name of a parameter that the factory must have.
    """
    chosen = [
        row
        for row in ROWS.values()
        if row.kind not in OTHERS
        and all(getattr(row, k) == v for k, v in traits.items())
        and (takes is None or takes in inspect.signature(row.factory).parameters)
    ]
    return [pytest.param(beside_others(row), id=row.name) for row in chosen]


def keeps_factors(tx: Any) -> bool:
    """Whether a stage on whole matrices has slots of its own."""
    nodes = [node_of(part.tx) for part in open_components(tx, None).walk()]
    stages = [node.batched for node in nodes if isinstance(node, Rule)]
    return any(stage is not None and stage.slots for stage in stages)


@ft.cache
def keeps_factors_of(name: str) -> bool:
    row = ROWS[name]
    return row.kind not in OTHERS and keeps_factors(make(row))


# What a rule may use of the engine.
USES = ("slots", "scalars", "leaf_stat", "global_stat", "batched", "elementwise")


@ft.cache
def traits(name: str) -> frozenset[str]:
    """What the parts of a factory use of the engine; `function` if one is no rule."""
    row = ROWS[name]
    parts = [] if row.kind in OTHERS else node_of(make(row)).parts()
    return frozenset(x for part in parts for x in uses(part)) or frozenset({row.kind})


def uses(part: Any) -> list[str]:
    if isinstance(part, Rule):
        return ["rule", *(x for x in USES if getattr(part, x))]
    return ["function"]


class Pair(NamedTuple):
    first: Any
    second: Any


@jax.tree_util.register_dataclass
@dataclass
class Record:
    weights: Any
    bias: Any


def mlp() -> Any:
    """A module that is callable, with functions among its leaves."""
    eqx = pytest.importorskip("equinox")
    return eqx.nn.MLP(2, 2, 2, 1, key=jax.random.key(0))


def filtered_mlp() -> Any:
    eqx = pytest.importorskip("equinox")
    return eqx.filter(mlp(), eqx.is_inexact_array)


def frozen() -> Any:
    flax = pytest.importorskip("flax")
    return flax.core.FrozenDict({"layer": {"kernel": _w(2, 2)}})


def nnx_state() -> Any:
    nnx = pytest.importorskip("flax.nnx")

    class Net(nnx.Module):
        def __init__(self):
            self.linear = nnx.Linear(2, 2, rngs=nnx.Rngs(0))

    return nnx.state(Net(), nnx.Param)


def _w(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.RandomState(7).randn(*shape) + 0.5, jnp.float32)


# Few shapes, because each is compiled once.
TREES = {
    "dict": lambda: {"w": _w(4, 3), "b": _w(3)},
    "array": lambda: _w(3),
    "tuple": lambda: (_w(2), [_w(2, 2)]),
    "NamedTuple": lambda: Pair(_w(2, 2), {"x": _w(3)}),
    "dataclass": lambda: Record(_w(2, 2), _w(2)),
    "None leaf": lambda: {"w": _w(2, 2), "none": None, "deep": {"none": None}},
    "empty": lambda: {},
    "only None": lambda: (None,),
    "0-d": lambda: {"scalar": _w(), "w": _w(2)},
    "zero size": lambda: {"nothing": jnp.zeros((0, 3), jnp.float32), "w": _w(2)},
    "Python scalars": lambda: {"x": 1.5, "y": -0.5},
    "NumPy": lambda: {"w": np.ones((2, 2), np.float32), "x": np.float32(2.0)},
    "module, filtered": filtered_mlp,
    "module, whole": mlp,
    "FrozenDict": frozen,
    "nnx State": nnx_state,
}


def gradients(params: Any, step: int = 0) -> Any:
    """Gradients for a tree, `None` for what is no array; different at each step."""

    def one(p):
        if not hasattr(p, "dtype") and not isinstance(p, int | float | complex):
            return None
        return jnp.asarray(p) * (0.5 + 0.25 * step) + jnp.asarray(
            0.1, jnp.result_type(p)
        )

    return jax.tree.map(one, params)


# Dtypes of parameters and of gradients.
DTYPES = {
    "float32": ("float32", "float32"),
    "bfloat16": ("bfloat16", "bfloat16"),
    "float16": ("float16", "float16"),
    "bfloat16, float32 gradients": ("bfloat16", "float32"),
    "float32, bfloat16 gradients": ("float32", "bfloat16"),
    "float64": ("float64", "float64"),
    "float64, float32 gradients": ("float64", "float32"),
    "float32, float64 gradients": ("float32", "float64"),
    "complex64": ("complex64", "complex64"),
    "complex128": ("complex128", "complex128"),
}


def is_wide(name: str) -> bool:
    return "64" in name and name != "complex64" or name == "complex128"


def mixed(p_dtype: str, g_dtype: str) -> tuple[Any, Any]:
    """Parameters and gradients of given dtypes."""
    p = TREES["dict"]()
    g = gradients(p)
    return jax.tree.map(lambda x: x.astype(p_dtype), p), jax.tree.map(
        lambda x: x.astype(g_dtype), g
    )


def types(tree: Any) -> list:
    """Shape, dtype and weak type of each leaf."""
    return [
        (x.shape, x.dtype, x.weak_type) for x in map(jax.typeof, jax.tree.leaves(tree))
    ]
