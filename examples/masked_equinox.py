"""Train the last layer of an Equinox model, with masks and labels that are models.

An Equinox model is both a tree and callable, and so is every mask or label tree derived
from it.  Stepax calls a mask only if it is not a tree with leaves.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import stepax


model = eqx.nn.MLP(3, 1, 8, 2, key=jax.random.key(0))
inputs = jax.random.normal(jax.random.key(1), (32, 3))
targets = inputs.sum(1, keepdims=True)

last = lambda m: (m.layers[-1].weight, m.layers[-1].bias)
nothing = jax.tree.map(lambda _: False, model)
filter_spec = eqx.tree_at(last, nothing, replace=(True, True))
others = jax.tree.map(lambda chosen: not chosen, filter_spec)
labels = jax.tree.map(lambda chosen: "train" if chosen else "freeze", filter_spec)


@eqx.filter_value_and_grad
def loss(model):
    return jnp.mean((jax.vmap(model)(inputs) - targets) ** 2)


@eqx.filter_jit
def step(model, state, tx):
    value, gradients = loss(model)
    updates, state = tx.update(gradients, state, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, updates), state, value


def train(tx, steps=200):
    """The trained model, the optimizer state, and the first and last loss."""
    trained, state = model, tx.init(eqx.filter(model, eqx.is_array))
    values = []
    for _ in range(steps):
        trained, state, value = step(trained, state, tx)
        values.append(float(value))
    return trained, state, values[0], values[-1]


def count(tree):
    return sum(map(np.size, jax.tree.leaves(eqx.filter(tree, eqx.is_array))))


def main():
    assert callable(filter_spec) and callable(labels)
    rule, freeze = stepax.adabelief(1e-2), stepax.set_to_zero()
    both = {"train": rule, "freeze": freeze}
    by_name = {"layers/2/**": "train", "**": "freeze"}
    ways = {
        "masked": stepax.chain(
            stepax.masked(rule, filter_spec), stepax.masked(freeze, others)
        ),
        "masked by function": stepax.chain(
            stepax.masked(rule, lambda _: filter_spec),
            stepax.masked(freeze, lambda _: others),
        ),
        "partition": stepax.partition(both, labels),
        "partition by path": stepax.partition(both, by_name),
    }
    results = []
    for name, tx in ways.items():
        trained, state, before, after = train(tx)
        print(f"{name}: loss {before:.3f} -> {after:.3f}, state {count(state)} scalars")
        assert after < before / 2
        assert count(state) == 2 * count(last(model)) + 1  # two moments and a count
        same = jax.tree.map(
            np.array_equal, *(eqx.filter(m, eqx.is_array) for m in (model, trained))
        )
        assert same.layers[-1].weight is False and same.layers[-1].bias is False
        assert all(jax.tree.leaves(same.layers[:-1]))
        results.append(eqx.filter(trained, eqx.is_array))
    assert all(eqx.tree_equal(results[0], other) for other in results[1:])
    print("frozen layers bit-identical, all ways agree")


if __name__ == "__main__":
    main()
