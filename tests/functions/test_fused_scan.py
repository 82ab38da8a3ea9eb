"""`fused_scan`: each layer takes its step as soon as it has its gradient."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import types
from compare import assert_equal
from jax.sharding import NamedSharding, PartitionSpec

import stepax


LAYERS, WIDTH = 4, 8


def layer(p, x, scale=1.0):
    return x + jnp.tanh(x @ p["w"] + p["b"][None]) @ p["v"] * scale


def stacked(layers=LAYERS, width=WIDTH):
    w, v = jax.random.normal(jax.random.key(0), (2, layers, width, width)) / 3
    return {"w": w, "b": jnp.zeros((layers, width)), "v": v}


def loss(y):
    return jnp.mean((y - 1) ** 2)


def x_of(width=WIDTH):
    return jax.random.normal(jax.random.key(1), (16, width))


def fused_step(tx, params, state, x, *args):
    fused = stepax.fused_scan(layer, tx)
    y, inputs = fused.forward(params, x, *args)
    value, dy = jax.value_and_grad(loss)(y)
    return *fused.backward(dy, inputs, params, state, *args), value


def plain_step(tx, params, state, x, *args):
    """All gradients first, and then a step with each layer."""

    def whole(params, x):
        return loss(jax.lax.scan(lambda x, p: (layer(p, x, *args), None), x, params)[0])

    value, (g, dx) = jax.value_and_grad(whole, (0, 1))(params, x)
    step = lambda g, s, p: stepax.step(tx, g, s, p)
    return *jax.vmap(step)(g, state, params), dx, value


OPTIMIZERS = {
    "adamw": lambda: stepax.adamw(1e-2),
    "lion": lambda: stepax.lion(1e-2),
    "scheduled": lambda: stepax.sgd(stepax.cosine_decay_schedule(0.1, 5), momentum=0.9),
    "schedule free": lambda: stepax.contrib.schedule_free_adamw(1e-2),
    "muon": lambda: stepax.contrib.muon(1e-2),
    "soap": lambda: stepax.contrib.soap(1e-2),
    "adafactor": lambda: stepax.adafactor(1e-2, min_dim_size_to_factor=4),
    "masked": lambda: stepax.masked(stepax.adam(1e-2), {"b": False, "**": True}),
    "partition": lambda: stepax.partition(
        {"matrix": stepax.lion(1e-2), "bias": stepax.sgd(1e-2)},
        {"b": "bias", "**": "matrix"},
    ),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equals_a_step_after_all_gradients(name):
    tx, params, x = OPTIMIZERS[name](), stacked(), x_of()
    state = stepax.fused_scan(layer, tx).init(params)
    one = jax.jit(lambda p, s: fused_step(tx, p, s, x))
    two = jax.jit(lambda p, s: plain_step(tx, p, s, x))
    both, other = one(params, state), two(params, state)
    for _ in range(2):
        both, other = one(*both[:2]), two(*other[:2])
    (*_, dx, value), (*_, dx_2, value_2) = both, other
    assert types(both) == types(other)
    for a, b in zip(*map(jax.tree.leaves, (both[0], other[0])), strict=True):
        # Products of matrices in a stack are added up in another order.
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(dx, dx_2, rtol=1e-3, atol=1e-6)
    assert float(value) == pytest.approx(float(value_2), rel=1e-4)


def temporaries(step, tx, params, x):
    """Bytes per element of the parameters."""
    state = stepax.fused_scan(layer, tx).init(params)
    program: Any = jax.jit(step, static_argnums=0, donate_argnums=(1, 2))
    memory = program.lower(tx, params, state, x).compile().memory_analysis()
    size = sum(p.size for p in jax.tree.leaves(params))
    return memory.temp_size_in_bytes / size, memory.alias_size_in_bytes / size


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adamw", "lion"])
def test_one_gradient_at_a_time(name):
    tx, params, x = OPTIMIZERS[name](), stacked(16, 64), x_of(64)
    fused, kept = temporaries(fused_step, tx, params, x)
    plain, _ = temporaries(plain_step, tx, params, x)
    slots = {"adamw": 2, "lion": 1}[name]
    assert kept == pytest.approx(4 + 4 * slots, rel=0.01)  # all is overwritten
    # The gradient of all layers takes 4 bytes; the inputs of layers are in both.
    assert plain - fused > 3
    assert fused < 2.5  # of one layer in 16: parameters, slots, gradients


@pytest.mark.slow
def test_arguments_for_all_layers_and_keywords_for_update():
    params, x = stacked(), x_of()
    tx = stepax.sgd(0.1)
    state = stepax.fused_scan(layer, tx).init(params)
    one = fused_step(tx, params, state, x, 0.5)
    two = plain_step(tx, params, state, x, 0.5)
    np.testing.assert_allclose(one[0]["w"], two[0]["w"], rtol=1e-5, atol=1e-6)
    momo = stepax.contrib.momo(0.1)
    with pytest.raises(ValueError, match="one at a time"):
        stepax.fused_scan(layer, momo)


@pytest.mark.slow
def test_trees_between_layers_and_integers_among_arguments():
    def pair(p, x, at):
        h, c = x
        return h + p["w"][at] * c, c

    params = {"w": jnp.ones((3, 5))}
    fused = stepax.fused_scan(pair, stepax.sgd(0.1))
    state = fused.init(params)
    y, inputs = fused.forward(params, (jnp.ones(2), jnp.ones(2)), jnp.array([0, 1]))
    dy = jnp.ones(2), jnp.zeros(2)
    new, _, dx = fused.backward(dy, inputs, params, state, jnp.array([0, 1]))
    np.testing.assert_array_equal(y[0], 4)
    np.testing.assert_allclose(new["w"], np.tile([0.9, 0.9, 1, 1, 1], (3, 1)))
    np.testing.assert_array_equal(dx[1], 3)


def test_integers_booleans_and_keys_go_along():
    def noisy(p, x):
        h, n, key = x
        key, own = jax.random.split(key)
        noise = jax.random.normal(own, h.shape) * jax.random.uniform(p["key"])
        y = jnp.where(p["on"], jnp.tanh(h @ p["w"]), 0) + h + 0.1 * noise
        return y, n + p["n"], key

    tx, keys = stepax.adamw(0.1), jax.random.split(jax.random.key(0), LAYERS)
    on = jnp.arange(LAYERS) != 1
    params = {"w": stacked()["w"], "n": jnp.arange(LAYERS), "on": on, "key": keys}
    x = x_of(), jnp.int32(0), jax.random.key(1)
    fused = stepax.fused_scan(noisy, tx)
    state = fused.init(params)

    def one(params, state, x):
        y, inputs = fused.forward(params, x)
        dy = jax.grad(loss)(y[0]), None, None
        return y[1], *fused.backward(dy, inputs, params, state)

    def two(params, state, x):
        def whole(w, h):
            layer = lambda x, p: (noisy(p, x), None)
            return loss(jax.lax.scan(layer, (h, *x[1:]), params | {"w": w})[0][0])

        dw, dh = jax.grad(whole, (0, 1))(params["w"], x[0])
        g = {"w": dw, "n": None, "on": None, "key": None}
        return *jax.vmap(lambda g, s, p: stepax.step(tx, g, s, p))(g, state, params), dh

    n, new, after, dx = jax.jit(one)(params, state, x)
    wanted, wanted_state, dh = jax.jit(two)(params, state, x)
    assert n == sum(range(LAYERS)) and dx[1].dtype == dx[2].dtype == jax.dtypes.float0
    np.testing.assert_allclose(dx[0], dh, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(new["w"], wanted["w"], rtol=2e-4, atol=2e-5)
    for k in ("n", "on", "key"):
        assert_equal(new[k], params[k])
    np.testing.assert_array_equal(*(x[0].count for x in (after, wanted_state)))


@pytest.mark.slow
def test_on_a_mesh():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    params, x, tx = stacked(), x_of(), stepax.adamw(1e-2)
    state = stepax.fused_scan(layer, tx).init(params)
    alone = jax.jit(lambda p, s, x: fused_step(tx, p, s, x))(params, state, x)
    by_column = NamedSharding(mesh, PartitionSpec(None, None, "data"))
    placed = {k: jax.device_put(p, by_column) for k, p in params.items() if p.ndim == 3}
    params = params | placed
    x = jax.device_put(x, NamedSharding(mesh, PartitionSpec("data")))
    state = stepax.fused_scan(layer, tx).init(params)
    shared = jax.jit(lambda p, s, x: fused_step(tx, p, s, x))(params, state, x)
    for a, b in zip(jax.tree.leaves(alone), jax.tree.leaves(shared), strict=True):
        np.testing.assert_allclose(a, np.asarray(b), rtol=1e-4, atol=1e-5)


def refused():
    clip = stepax.clip_by_global_norm(1.0)
    return {
        "global norm": (stepax.chain(clip, stepax.adamw(1e-3)), "clip_by_global_norm"),
        "inside": (
            stepax.masked(clip, {"b": True, "**": False}),
            "clip_by_global_norm",
        ),
        "closure": (stepax.apply_if_finite(stepax.adam(1e-3), 5), "apply_if_finite"),
        "accumulation": (stepax.MultiSteps(stepax.adam(1e-3), 2), "MultiSteps"),
        "optax": (optax.adam(1e-3), "cannot inspect"),
        "noise": (stepax.add_noise(0.1, 0.5, 0), "cannot inspect `add_noise"),
        "prodigy": (stepax.contrib.prodigy(), "one at a time"),
    }


@pytest.mark.parametrize("name", refused())
def test_what_needs_all_gradients_is_named(name):
    tx, words = refused()[name]
    with pytest.raises(ValueError, match=words):
        stepax.fused_scan(layer, tx)


@pytest.mark.parametrize(
    "params, words",
    [
        ({"w": jnp.ones((2, 3)), "b": jnp.ones(3)}, r"2 layers at \['w'\], and 3 at"),
        ({"w": jnp.ones((2, 3)), "b": jnp.ones(())}, r"no axis of layers at \['b'\]"),
        ({"w": jnp.ones((2, 3)), "f": jnp.tanh}, r"no axis of layers at \['f'\]"),
        ({}, "no arrays"),
    ],
    ids=["lengths", "scalar", "function", "empty"],
)
def test_parameters_that_are_no_stack(params, words):
    fused = stepax.fused_scan(layer, stepax.adam(1e-3))
    for call in (fused.init, lambda p: fused.forward(p, jnp.ones(3))):
        with pytest.raises(ValueError, match=words):
            call(params)


def test_a_layer_that_returns_something_else():
    fused = stepax.fused_scan(lambda p, x: x @ p, stepax.adam(1e-3))
    with pytest.raises(ValueError, match=r"float32\[2,3\].* returns float32\[2,4\]"):
        fused.forward(jnp.ones((5, 3, 4)), jnp.ones((2, 3)))
    with pytest.raises(TypeError, match="`layer` must be a function"):
        stepax.fused_scan({"w": 1}, stepax.adam(1e-3))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"did you mean `adam\(...\)`"):
        stepax.fused_scan(layer, stepax.adam)  # type: ignore[arg-type]
