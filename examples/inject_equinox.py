"""Hyperparameters in the state: change the learning rate without recompiling.

The parameters are a callable Equinox model, and so is a decay mask derived from it.
Neither is mistaken for a schedule, and no argument has to be declared static.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import stepax


model = eqx.nn.MLP(4, 1, 16, 2, key=jax.random.key(0))
params, static = eqx.partition(model, eqx.is_inexact_array)
inputs = jax.random.normal(jax.random.key(1), (64, 4))
targets = jnp.sin(inputs).sum(1, keepdims=True)


def loss(params):
    outputs = jax.vmap(eqx.combine(params, static))(inputs)
    return jnp.mean((outputs - targets) ** 2)


def matrices(params):
    """Decay the weights, not the biases."""
    return jax.tree.map(lambda p: p.ndim > 1, params)


def training(tx):
    """A training step, and a list that grows by one each time it is traced."""
    traces = []

    @jax.jit
    def step(params, state):
        traces.append(1)
        updates, state = tx.update(jax.grad(loss)(params), state, params)
        return stepax.apply_updates(params, updates), state

    return step, traces


def run(tx, steps=20):
    step, _ = training(tx)
    trained, state = params, tx.init(params)
    for _ in range(steps):
        trained, state = step(trained, state)
    return trained


def largest_difference(a, b):
    gap = jax.tree.map(lambda x, y: float(jnp.max(jnp.abs(x - y))), a, b)
    return max(jax.tree.leaves(gap))


def main():
    arguments = {"learning_rate": 1e-2, "weight_decay": 1e-1}
    plain = run(stepax.adamw(**arguments, mask=matrices))
    for kind, mask in (("tree", matrices(params)), ("function", matrices)):
        tx = stepax.inject_hyperparams(stepax.adamw)(**arguments, mask=mask)
        gap = largest_difference(run(tx), plain)
        print(f"mask as {kind}: injected - plain = {gap:.1e}")
        # The learning rate is an input of one compiled step and a constant of the
        # other, so weights may differ in the last bit, 1e-7; twenty steps add up.
        assert gap < 1e-5
    assert largest_difference(run(stepax.adamw(**arguments)), plain) > 1e-4

    step, traces = training(tx)
    state = tx.init(params)
    trained, state = step(params, state)
    for rate in (1e-3, 1e-4, 0.0):
        state.hyperparams["learning_rate"] = jnp.float32(rate)
        before, (trained, state) = trained, step(trained, state)
        print(f"rate {rate:g}: moved {largest_difference(before, trained):.1e}")
    assert largest_difference(before, trained) == 0
    print(f"learning rates: 4, traces: {len(traces)}")
    assert len(traces) == 1

    half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
    schedule = stepax.cosine_decay_schedule(1e-2, 100)
    tx = stepax.inject_hyperparams(stepax.adamw)(schedule, mu_dtype=jnp.bfloat16)
    state = tx.init(half)
    dtypes = {np.dtype(x.dtype).name for x in state.hyperparams.values()}
    print(f"bfloat16 parameters: injected {sorted(state.hyperparams)} as {dtypes}")
    assert dtypes == {"float32"}


if __name__ == "__main__":
    main()
