"""LoRA: a trained network is adapted by low-rank factors; its own weights are frozen.

One mapping of paths says what trains; frozen parameters have no state.
"""

import jax
import jax.numpy as jnp

import stepax

from .shared import Canvas, apply, dense, run, train


def adapted(params):
    """The layers with the products of their factors added."""
    return [
        layer | {"kernel": layer["kernel"] + factors["a"] @ factors["b"]}
        for layer, factors in zip(params["base"], params["lora"], strict=True)
    ]


def factors(key, layer):
    m, n = layer["kernel"].shape
    return {"a": jax.random.normal(key, (m, 2)) / m**0.5, "b": jnp.zeros((2, n))}


def main(small: bool) -> Canvas:
    x = jnp.linspace(-3, 3, 64)[:, None]
    loss_of = lambda goal: lambda p, key: jnp.mean((apply(p, x) - goal) ** 2)
    steps = 30 if small else 600
    base = dense(jax.random.key(0), 1, 32, 32, 1)
    base, before = train(loss_of(jnp.sin(x)), base, stepax.adam(1e-2), steps)
    keys = jax.random.split(jax.random.key(1), 3)
    params = {"base": base, "lora": list(map(factors, keys, base))}
    goal = jnp.sin(x) + 0.3 * x
    tx = stepax.partition(
        {"train": stepax.adam(1e-2), "freeze": stepax.set_to_zero()},
        {"base": "freeze", "lora": "train"},
    )
    loss = lambda p, key: jnp.mean((apply(adapted(p), x) - goal) ** 2)
    after, losses = train(loss, params, tx, steps)
    same = jax.tree.map(jnp.array_equal, after["base"], base)
    assert jax.tree.all(same), "the base has moved"
    size = lambda tree: sum(x.size for x in jax.tree.leaves(tree))
    print(f"trained {size(params['lora'])} of {size(params)} numbers")
    curves = {"the base": before, "its adapters": losses}
    return Canvas(title="Loss of a base, then of adapters").curves(curves, log=True)


if __name__ == "__main__":
    run(main)
