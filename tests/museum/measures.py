"""What a cure does better: a number of which less is better, for a program."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import stepax
from stepax._engine.base import is_array


def _task(params: Any) -> tuple[Any, Any]:
    """Targets, and curvatures from 0.01 to 1, of a quadratic loss."""
    draw = np.random.RandomState(0)
    targets = jax.tree.map(
        lambda p: jnp.asarray(draw.randn(*p.shape), "float32"), params
    )
    bend = lambda p: jnp.asarray(10.0 ** draw.uniform(-2, 0, p.shape), "float32")
    return targets, jax.tree.map(bend, params)


def _loss(params: Any, task: tuple[Any, Any]) -> jax.Array:
    one = lambda p, t, h: jnp.sum(h * (p.astype("float32") - t) ** 2)
    terms = jax.tree.leaves(jax.tree.map(one, params, *task))
    return jnp.sum(jnp.stack(terms)) / 2


def train(
    tx: Any, params: Any, calls: int, spikes: int = 0, nan: int = 0, noise: float = 0.0
) -> tuple[Any, Any]:
    """The state and the parameters after some calls of `update`.

    spikes: every so many gradients one is a hundred times as large; 0 for none.
    nan: every so many gradients one is NaN; 0 for none.
    noise: the standard deviation of what is added to gradients.
    """
    task = _task(params)

    @jax.jit
    def gradients(params, t):
        g = jax.grad(_loss)(params, task)
        is_spike = (t % spikes == spikes - 1) if spikes else False
        g = jax.tree.map(lambda x: jnp.where(is_spike, 100 * x, x), g)
        is_nan = (t % nan == nan - 1) if nan else False
        g = jax.tree.map(lambda x: jnp.where(is_nan, jnp.full_like(x, jnp.nan), x), g)
        if not noise:
            return g
        key = jax.random.fold_in(jax.random.key(0), t)
        add = lambda x: x + noise * jax.random.normal(key, x.shape, x.dtype)
        return jax.tree.map(add, g)

    state = tx.init(params)
    update = jax.jit(stepax.with_extra_args_support(tx).update)
    for t in range(calls):
        value = _loss(params, task)
        updates, state = update(gradients(params, t), state, params, value=value)
        params = stepax.apply_updates(params, updates)
    return state, params


def loss(found: dict[str, Any], calls: int = 100, **options: Any) -> float:
    """The loss after some calls of `update`; infinity if they fail."""
    floats = lambda p: is_array(p) and jnp.issubdtype(p.dtype, jnp.inexact)
    params = found["params"]
    if not all(map(floats, jax.tree.leaves(params))):
        try:
            found["tx"].update(params, found["tx"].init(params), params)
        except (TypeError, ValueError):
            return float("inf")
        params = jax.tree.map(lambda p: p if floats(p) else None, params)
    _, params = train(found["tx"], params, calls, **options)
    value = float(_loss(params, _task(params)))
    return value if np.isfinite(value) else float("inf")


def evaluated(found: dict[str, Any], calls: int = 100, **options: Any) -> float:
    """The loss of the parameters that the program evaluates."""
    state, params = train(found["tx"], found["params"], calls, **options)
    choose = found.get("evaluate", lambda state, params: params)
    params = choose(state, params)
    return float(_loss(params, _task(params)))


def slow(found: dict[str, Any], calls: int = 100) -> float:
    """The loss of the slow parameters of `lookahead`."""
    tx, params = found["tx"], found["params"]
    task, state = _task(params.slow), tx.init(params)
    for _ in range(calls):
        g = jax.grad(_loss)(params.fast, task)
        updates, state = jax.jit(tx.update)(g, state, params)
        params = stepax.apply_updates(params, updates)
    return float(_loss(params.slow, task))


def largest(found: dict[str, Any], calls: int = 100, **options: Any) -> float:
    """The largest parameter after some calls."""
    _, params = train(found["tx"], found["params"], calls, **options)
    return max(float(jnp.abs(p).max()) for p in jax.tree.leaves(params))


def vectors(found: dict[str, Any], calls: int = 100, **options: Any) -> float:
    """The loss of arrays of one axis alone."""
    _, params = train(found["tx"], found["params"], calls, **options)
    pick = lambda tree: [x for x in jax.tree.leaves(tree) if x.ndim == 1]
    targets, curvatures = map(pick, _task(found["params"]))
    return float(_loss(pick(params), (targets, curvatures)))


def bytes_of_state(found: dict[str, Any]) -> float:
    """Bytes of the state."""
    state = jax.eval_shape(found["tx"].init, found["params"])
    return float(sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state)))


def linear(found: dict[str, Any], calls: int = 100) -> float:
    """The loss of a deep linear network, on inputs of very different sizes."""
    draw = np.random.RandomState(0)
    new = lambda p: jnp.asarray(draw.randn(*p.shape) / 4, "float32") * (p.ndim > 2)
    params = jax.tree.map(new, found["params"])
    x = draw.randn(64, 16).astype("float32") * np.logspace(0, -2, 16, dtype="float32")
    y = x @ draw.randn(16, 16).astype("float32")

    def error(params):
        layers = params.get("layers", params)
        out, biases = x, layers.get("bias", jnp.zeros(4))
        for kernel, bias in zip(layers["kernel"], biases, strict=True):
            out = out @ kernel + bias
        return jnp.mean((out - y) ** 2)

    tx = found["tx"]
    state, update = tx.init(params), jax.jit(tx.update)
    for _ in range(calls):
        updates, state = update(jax.grad(error)(params), state, params)
        params = stepax.apply_updates(params, updates)
    return float(error(params))


def padded(found: dict[str, Any]) -> float:
    """The number of NaN after a step with a gradient of 0, as of padding."""
    params = found["params"]
    zeros = jax.tree.map(jnp.zeros_like, params)
    updates, _ = found["tx"].update(zeros, found["tx"].init(params), params)
    return float(sum(jnp.isnan(u).sum() for u in jax.tree.leaves(updates)))


def given(found: dict[str, Any]) -> float:
    """The number of NaN in the gradients."""
    return float(sum(jnp.isnan(g).sum() for g in jax.tree.leaves(found["gradients"])))


def second(found: dict[str, Any], b2: float = 0.9999) -> float:
    """The relative error of the second moment of ones, after a step."""
    params = found["params"]
    ones = jax.tree.map(jnp.ones_like, params)
    _, state = found["tx"].update(ones, found["tx"].init(params), params)
    first = jax.tree.leaves(stepax.tree.get(state, "nu"))[0]
    return float(abs(np.max(np.asarray(first, float)) / (1 - b2) - 1))


MEASURES = {
    "second": (second, "error of the second moment"),
    "linear": (linear, "loss of a linear network"),
    "padded": (padded, "NaN after a gradient of 0"),
    "given": (given, "NaN in the gradients"),
    "loss": (loss, "loss"),
    "evaluated": (evaluated, "loss of what is evaluated"),
    "slow": (slow, "loss of the slow parameters"),
    "largest": (largest, "largest parameter"),
    "vectors": (vectors, "loss of biases and norm scales"),
    "bytes": (bytes_of_state, "bytes of state"),
}
