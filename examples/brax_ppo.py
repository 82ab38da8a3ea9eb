"""Brax's own PPO with a frozen value network: one line selects the trained leaves.

`ppo.train` takes no optimizer but calls `optax.adam`, so the name `optax` in its module
is replaced during training.  Environment, networks, loss and training loop are Brax's.
"""

import functools
from types import SimpleNamespace
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from brax import envs
from brax.training.agents.ppo import losses, networks, train as ppo
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import stepax


tx = stepax.partition(
    {"adam": stepax.adam(1e-3), "freeze": stepax.set_to_zero()},
    {"policy/**": "adam", "**": "freeze"},
)


def device_put_replicated(tree, devices):
    """The function of that name, which Brax 0.14 calls and JAX 0.10 has removed."""
    sharding = NamedSharding(Mesh(np.array(devices), "i"), PartitionSpec("i"))
    copies = lambda x: jnp.broadcast_to(x, (len(devices), *jnp.shape(x)))
    return jax.tree.map(lambda x: jax.device_put(copies(x), sharding), tree)


def train():
    """The returns of all evaluations, and the parameters before and after."""
    returns, params = [], []
    optax = SimpleNamespace(
        adam=lambda learning_rate: tx, apply_updates=stepax.apply_updates
    )
    with (
        mock.patch.object(ppo, "optax", optax),
        mock.patch.object(
            jax, "device_put_replicated", device_put_replicated, create=True
        ),
    ):
        ppo.train(
            envs.get_environment("inverted_pendulum"),
            num_timesteps=150_000,
            episode_length=100,
            num_envs=64,
            unroll_length=50,
            batch_size=64,
            num_minibatches=4,
            num_updates_per_batch=8,
            discounting=0.9,
            gae_lambda=1.0,
            reward_scaling=10.0,  # rewards outweigh the untrained value estimates
            num_evals=2,
            num_eval_envs=32,
            deterministic_eval=True,
            max_devices_per_host=1,
            network_factory=functools.partial(
                networks.make_ppo_networks,
                policy_hidden_layer_sizes=(32, 32),
                value_hidden_layer_sizes=(32, 32),
            ),
            progress_fn=lambda _, m: returns.append(float(m["eval/episode_reward"])),
            policy_params_fn=lambda *args: params.append(jax.device_get(args[-1][1:])),
        )
    first, last = (losses.PPONetworkParams(*params[i]) for i in (0, -1))
    return returns, first, last


def main():
    returns, first, last = train()
    print(f"return {returns[0]:.1f} -> {returns[-1]:.1f} of 100")
    assert returns[-1] > returns[0] + 30

    same = jax.tree.map(np.array_equal, first, last)
    assert all(jax.tree.leaves(same.value))
    assert not any(jax.tree.leaves(same.policy))
    print(f"value: {len(jax.tree.leaves(same.value))} leaves bit-identical")

    state = tx.init(last)
    learned, kept = (
        sum(map(np.size, jax.tree.leaves(t))) for t in (last.policy, state)
    )
    assert kept == 2 * learned + 1  # two moments for each number, and a count
    mu = stepax.tree.get(state, "mu")
    assert not jax.tree.leaves(mu.value)
    print(f"optimizer state: {kept} scalars for {learned} trained, none for value")


if __name__ == "__main__":
    main()
