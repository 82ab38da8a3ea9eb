"""Scanned models of other libraries train as the same models unrolled."""

import functools as ft
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stepax
import stepax.contrib


X = jax.random.normal(jax.random.key(0), (4, 6, 8))
Y = jnp.roll(X, 1, 1)
LAYERS = 3


def linen() -> tuple[Any, ...]:
    nn = pytest.importorskip("flax.linen")

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, _=None):
            x = x + nn.MultiHeadDotProductAttention(2)(nn.LayerNorm()(x))
            return x + nn.Dense(8)(nn.gelu(nn.Dense(16)(nn.LayerNorm()(x)))), None

    axes = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
    layers = nn.scan(Block, **axes, length=LAYERS)()
    params = layers.init(jax.random.key(1), X, None)["params"]
    one = lambda p, x: Block().apply({"params": p}, x)[0]
    return params, lambda p, x: layers.apply({"params": p}, x, None)[0], one, 0


def nnx() -> tuple[Any, ...]:
    nnx = pytest.importorskip("flax.nnx")

    class Block(nnx.Module):
        def __init__(self, rngs):
            self.attend = nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs)
            self.up, self.down = (nnx.Linear(8, 8, rngs=rngs) for _ in range(2))

        def __call__(self, x):
            x = x + self.attend(x)
            return x + self.down(nnx.gelu(self.up(x)))

    @nnx.split_rngs(splits=LAYERS)
    @nnx.vmap(in_axes=0, out_axes=0)
    def create(rngs):
        return Block(rngs)

    graph, params, rest = nnx.split(create(nnx.Rngs(0)), nnx.Param, ...)
    run = nnx.scan(lambda x, f: f(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
    scan = lambda p, x: run(x, nnx.merge(graph, p, rest))
    single, _, less = nnx.split(Block(nnx.Rngs(0)), nnx.Param, ...)
    return params, scan, lambda p, x: nnx.merge(single, p, less)(x), 0


def _over(one: Any) -> Any:
    return lambda p, x: jax.lax.scan(lambda x, p: (one(p, x), None), x, p)[0]


def equinox() -> tuple[Any, ...]:
    eqx = pytest.importorskip("equinox")

    class Block(eqx.Module):
        attend: Any
        mlp: Any

        def __init__(self, key):
            self.attend = eqx.nn.MultiheadAttention(2, 8, key=key)
            self.mlp = eqx.nn.MLP(8, 8, 16, 1, key=key)

        def __call__(self, x):
            x = x + self.attend(x, x, x)
            return x + jax.vmap(self.mlp)(x)

    keys = jax.random.split(jax.random.key(2), LAYERS)
    params, static = eqx.partition(eqx.filter_vmap(Block)(keys), eqx.is_array)
    one = lambda p, x: jax.vmap(eqx.combine(p, static))(x)
    return params, _over(one), one, 0


@jax.tree_util.register_dataclass
@dataclass
class Named:
    """An array with named axes, as in haliax."""

    array: Any
    axes: tuple = field(metadata={"static": True})


def named() -> tuple[Any, ...]:
    draw = lambda n, *shape: jax.random.normal(jax.random.key(n), shape) / 3
    params = {
        "qkv": Named(draw(3, 8, LAYERS, 24), ("embed", "layers", "qkv")),
        "up": Named(draw(4, LAYERS, 8, 16), ("layers", "embed", "mlp")),
        "down": Named(draw(5, LAYERS, 16, 8), ("layers", "mlp", "embed")),
        "bias": Named(draw(6, LAYERS, 8), ("layers", "embed")),
    }

    def one(p, x):
        q, k, v = jnp.split(x @ p["qkv"], 3, -1)
        x = x + jax.nn.softmax(q @ k.mT) @ v
        return x + jnp.tanh(x @ p["up"]) @ p["down"] + p["bias"]

    scan = lambda p, x: _over(one)(_layers_first(p), x)
    return params, scan, one, {"**": "layers"}


def _layers_first(params: Any) -> dict[str, Any]:
    moved = lambda x: jnp.moveaxis(x.array, x.axes.index("layers"), 0)
    return {k: moved(x) for k, x in params.items()}


def unrolled(params: Any, axes: Any) -> list:
    """One tree for each layer."""
    if axes == 0:
        return stepax.tree.unstack(params, 0)
    at = {
        k: jnp.moveaxis(v.array, v.axes.index("layers"), 0) for k, v in params.items()
    }
    return stepax.tree.unstack(at, 0)


def losses(loss: Any, params: Any, tx: Any, steps: int = 50) -> np.ndarray:
    def step(both, _):
        params, state = both
        value, g = jax.value_and_grad(loss)(params)
        updates, state = tx.update(g, state, params)
        return (stepax.apply_updates(params, updates), state), value

    run = jax.jit(lambda both: jax.lax.scan(step, both, length=steps)[1])
    return np.asarray(run((params, tx.init(params))))


OPTIMIZERS = {
    "lamb": lambda: stepax.lamb(1e-3),
    "muon": lambda: stepax.contrib.muon(1e-3),
    "soap": lambda: stepax.contrib.soap(1e-3),
}
MODELS = {"linen": linen, "nnx": nnx, "equinox": equinox, "named": named}


def rejoined(scan: Any, one: Any, axes: Any) -> Any:
    """The scanned model of layers by themselves, which has its gradients to the bit."""
    if axes == 0:
        return lambda layers: scan(stepax.tree.stack(layers, 0), X)
    return lambda layers: _over(one)(stepax.tree.stack(layers, 0), X)


def by_layers(one: Any) -> Any:
    return lambda layers: ft.reduce(lambda x, p: one(p, x), layers, X)


@pytest.mark.few(1)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_losses_are_those_of_the_unrolled_model(model, optimizer):
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        params, scan, one, axes = MODELS[model]()
        error = lambda made: jnp.mean((made - Y) ** 2)
        # Eigenvectors of close eigenvalues follow the roundings of gradients: with
        # those of an unrolled model losses under SOAP differ by up to 1e-3.
        is_soap = optimizer == "soap"
        run = rejoined(scan, one, axes) if is_soap else by_layers(one)
        tx = OPTIMIZERS[optimizer]()
        scanned = lambda p: error(scan(p, X))
        found = losses(scanned, params, stepax.stacked(tx, axes))
        wanted = losses(lambda p: error(run(p)), unrolled(params, axes), tx)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert found[-1] < found[0]
