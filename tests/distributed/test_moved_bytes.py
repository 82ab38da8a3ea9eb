"""A step moves no more between the devices of a mesh than with Optax.

On a transformer, since in its layers equal shapes are sharded differently.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from cases import make, rows
from inside import collectives, node_of
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from keywords import keywords

import stepax
import stepax.contrib
from stepax.rules import Rule


VOCABULARY, WIDTH, HEADS, LAYERS = 64, 32, 4, 2
NORM = {"scale": (WIDTH,), "bias": (WIDTH,)}
BLOCK = {
    "before": NORM,
    "query": (WIDTH, WIDTH),
    "key": (WIDTH, WIDTH),
    "value": (WIDTH, WIDTH),
    "out": (WIDTH, WIDTH),
    "after": NORM,
    "up": (WIDTH, 4 * WIDTH),
    "up_bias": (4 * WIDTH,),
    "down": (4 * WIDTH, WIDTH),
}
SHAPES = {
    "embedding": (VOCABULARY, WIDTH),
    "blocks": [BLOCK] * LAYERS,
    "head": (WIDTH, VOCABULARY),
}


class Layout(NamedTuple):
    """How parameters and tokens are sharded over a mesh.

    by_columns, by_rows: the specs of matrices before and after a nonlinearity.
    """

    sizes: dict[str, int]
    by_columns: P
    by_rows: P
    tokens: P


LAYOUTS = {
    "FSDP": Layout({"data": 8}, P(None, "data"), P("data", None), P("data")),
    "TP": Layout({"model": 8}, P(None, "model"), P("model", None), P()),
    "FSDP x TP": Layout(
        {"data": 4, "model": 2}, P("data", "model"), P("model", "data"), P("data")
    ),
}


def mesh_of(layout: Layout, kind: AxisType = AxisType.Auto) -> Any:
    sizes = layout.sizes
    kinds = (kind,) * len(sizes)
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=kinds)


def params_on(mesh: Any, layout: Layout) -> Any:
    """The parameters of the transformer, as `device_put` leaves them."""

    def put(path, shape):
        is_last = path[-1].key in ("out", "down", "embedding")
        spec = layout.by_rows if is_last else layout.by_columns
        spec = spec if len(shape) == 2 else P()
        value = np.random.RandomState(len(path)).randn(*shape).astype(np.float32)
        return jax.device_put(value / 6, NamedSharding(mesh, spec))

    is_shape = lambda x: isinstance(x, tuple)
    return jax.tree_util.tree_map_with_path(put, SHAPES, is_leaf=is_shape)


def normed(x, p):
    x = x - x.mean(-1, keepdims=True)
    return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * p["scale"] + p["bias"]


def loss(params, tokens):
    x = jax.nn.one_hot(tokens, VOCABULARY) @ params["embedding"]
    for block in params["blocks"]:
        h = normed(x, block["before"])
        names = ("query", "key", "value")
        q, k, v = ((h @ block[i]).reshape(*h.shape[:2], HEADS, -1) for i in names)
        weights = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k))
        x = (
            x
            + jnp.einsum("bhts,bshd->bthd", weights, v).reshape(x.shape) @ block["out"]
        )
        h = jax.nn.gelu(normed(x, block["after"]) @ block["up"] + block["up_bias"])
        x = x + h @ block["down"]
    rows = jax.nn.log_softmax(x @ params["head"])
    return -jnp.mean(rows * jax.nn.one_hot(tokens, VOCABULARY))


MOVES = ("all-gather", "all-to-all", "collective-permute", "reduce-scatter")


def moved(tx: Any, layout: Layout, mesh: Any, gradient: Callable) -> dict[str, int]:
    """The bytes of each collective of a step; `gradient` of parameters and tokens."""
    params = params_on(mesh, layout)
    tokens = jnp.arange(128).reshape(8, 16) % VOCABULARY
    tokens = jax.device_put(tokens, NamedSharding(mesh, layout.tokens))
    state = jax.jit(tx.init)(params)
    known = node_of(tx).keywords()

    def step(params, state, tokens):
        g = gradient(params, tokens)
        found = keywords(g)
        extra = found if known is None else {k: found[k] for k in known & found.keys()}
        updates, state = tx.update(g, state, params, **extra)
        return optax.apply_updates(params, updates), state

    program = jax.jit(step).lower(params, state, tokens).compile()
    return {x.kind: x.bytes for x in collectives(program.as_text() or "")}


@pytest.fixture(autouse=True)
def as_usual():
    """Dtypes that mix, as Optax needs them to."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


CHAINS = {
    "clip and AdamW": lambda lib: lib.chain(
        lib.clip_by_global_norm(1.0), lib.adamw(1e-3)
    ),
    "normalize": lambda lib: lib.chain(lib.normalize_by_update_norm(), lib.sgd(0.1)),
    "finite and clip": lambda lib: lib.apply_if_finite(
        lib.chain(lib.clip_by_global_norm(1.0), lib.lion(1e-4)), 3
    ),
    "accumulated": lambda lib: lib.MultiSteps(
        lib.chain(lib.clip_by_global_norm(1.0), lib.adam(1e-3)), 2
    ).gradient_transformation(),
    "LAMB": lambda lib: lib.chain(lib.clip_by_global_norm(1.0), lib.lamb(1e-3)),
    "Adafactor": lambda lib: lib.adafactor(1e-3, min_dim_size_to_factor=16),
}


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("chain", CHAINS)
def test_training_a_transformer_moves_no_more_than_with_optax(chain, layout):
    where = LAYOUTS[layout]
    mesh, gradient = mesh_of(where), jax.grad(loss)
    found, most = (
        moved(CHAINS[chain](lib), where, mesh, gradient) for lib in (stepax, optax)
    )
    for kind in MOVES:
        assert found.get(kind, 0) <= most.get(kind, 0), (kind, found, most)
    assert total(found) <= total(most) + SCALARS, (found, most)


def total(found):
    return sum(found.values())


# Booleans that Optax reduces as bytes are here sums of float32, one for each array.
SCALARS = 4 * 32

WAYS = {
    "automatic": (AxisType.Auto, False),
    "automatic, set_mesh": (AxisType.Auto, True),
    "explicit": (AxisType.Explicit, True),
}


def factory_of_optax(name):
    return getattr(optax, name, getattr(optax.contrib, name, None))


def of_optax(row):
    """The same call of Optax; `None` if it has no such factory."""
    found = factory_of_optax(row.name)
    return found and make(dataclasses.replace(row, factory=found))


def same(params, tokens):
    """Gradients that are sharded like the parameters."""
    return params


def is_compared(row):
    """Whether Optax has it for this tree, or it looks at each element by itself.

    A mean over a row that is divided has to be summed over devices, and the scale of a
    block of codes is that of all its elements.
    """
    tx = make(row)
    parts = list(node_of(tx).parts())
    if factory_of_optax(row.name):
        # Optax's directions of matrices take no vectors.
        takes_all = row.kind != "transform"
        return takes_all or not any(getattr(x, "batched", None) for x in parts)
    w = jnp.ones((64, 64))  # smaller ones are not coded
    shapes = {x.shape for x in jax.tree.leaves(jax.eval_shape(tx.init, {"w": w}))}
    has_rows = not shapes <= {(), w.shape}
    return not has_rows and all(isinstance(x, Rule) and is_by_element(x) for x in parts)


def is_by_element(rule):
    return rule.elementwise and rule.leaf_stat is None and rule.global_stat is None


COMPARED = [x for x in rows() if is_compared(x.values[0])]


@pytest.mark.few(2)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("row", COMPARED)
def test_a_step_moves_no_more_than_with_optax(row, layout, way):
    (kind, is_set), where = WAYS[way], LAYOUTS[layout]
    mesh, theirs = mesh_of(where, kind), of_optax(row) or stepax.sgd(0.1)
    with jax.set_mesh(mesh) if is_set else contextlib.nullcontext():
        found = moved(make(row), where, mesh, same)
    # Some of Optax's raise on explicit axes.
    most = moved(theirs, where, mesh_of(where), same)
    others, limit = (sum(x.get(k, 0) for k in MOVES) for x in (found, most))
    assert others <= limit, (found, most)
    # Sums that do not overflow, and maxima that keep a NaN, take two numbers.
    assert total(found) <= total(most) + most.get("all-reduce", 0) + SCALARS


@pytest.mark.few(6)
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1.0, 1e30, jnp.inf, jnp.nan])
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_norm_on_a_mesh_is_right_at_each_scale(kind, scale):
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind,) * 2)
    values = scale * jnp.ones((8, 8))
    put = lambda spec: jax.device_put(values, NamedSharding(mesh, spec))
    tree = [put(spec) for spec in (P("data"), P(None, "model"), P())]
    found, slope = jax.jit(jax.value_and_grad(stepax.tree.norm))(tree)
    np.testing.assert_allclose(found, scale * np.sqrt(192), rtol=1e-6)
    if np.isfinite(scale):
        each = scale and 1 / np.sqrt(192)
        jax.tree.map(lambda x: np.testing.assert_allclose(x, each, rtol=1e-6), slope)
