"""Libraries that import Optax run on Stepax under the switch.

The test runs this file as a program, by `python -m stepax.interop.optax`.
"""

import functools as ft
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest


ROOT = Path(__file__).parents[2]
inputs = jnp.linspace(-1.0, 1.0, 12).reshape(4, 3)


def flax():
    import optax
    from flax import linen, nnx
    from flax.training.train_state import TrainState

    model = linen.Dense(2)
    params = model.init(jax.random.key(0), inputs)
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(1e-2))
    loss = lambda p: jnp.mean(state.apply_fn(p, inputs) ** 2)
    state = state.apply_gradients(grads=jax.grad(loss)(params))
    assert loss(state.params) < loss(params)

    model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    loss = lambda m: jnp.mean(m(inputs) ** 2)
    before, grads = nnx.value_and_grad(loss)(model)
    optimizer.update(model, grads)
    assert loss(model) < before


def numpyro():
    import optax
    from numpyro import distributions as dist, infer, sample

    def model():
        sample("data", dist.Normal(sample("mean", dist.Normal(0.0, 10.0)), 1.0), obs=3)

    guide = infer.autoguide.AutoNormal(model)
    svi = infer.SVI(model, guide, optax.adam(0.1), infer.Trace_ELBO())
    losses = svi.run(jax.random.key(0), 50, progress_bar=False).losses
    assert losses[-1] < losses[0]


def optimistix():
    import optax
    from optimistix import OptaxMinimiser, minimise

    solver = OptaxMinimiser(optax.adam(optax.exponential_decay(0.1, 100, 0.9)), 1e-4, 0)
    square = lambda y, args: jnp.sum((y - 1.0) ** 2)
    found = minimise(square, solver, jnp.zeros(2), max_steps=2000, throw=False).value
    assert jnp.abs(found - 1).max() < 0.1


def brax():
    """Its PPO, in an environment without physics."""
    from brax import envs
    from brax.training.agents.ppo import networks, train

    small = {"policy_hidden_layer_sizes": (4,), "value_hidden_layer_sizes": (4,)}
    *_, metrics = train.train(
        envs.get_environment("fast"),
        num_timesteps=64,
        episode_length=4,
        num_envs=4,
        unroll_length=2,
        batch_size=4,
        num_minibatches=2,
        num_updates_per_batch=1,
        num_evals=2,
        num_eval_envs=2,
        network_factory=ft.partial(networks.make_ppo_networks, **small),
    )
    assert metrics["training/total_loss"] == metrics["training/total_loss"]


def device_put_replicated(tree, devices):
    """The function of this name that Brax 0.14 calls and JAX 0.10 removed."""
    mesh = jax.sharding.Mesh(devices, "i")
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i"))
    copies = lambda x: jnp.broadcast_to(x, (len(devices), *jnp.shape(x)))
    return jax.tree.map(lambda x: jax.device_put(copies(x), sharding), tree)


@pytest.mark.slow
def test_libraries_run_on_stepax():
    command = [sys.executable, "-m", "stepax.interop.optax", __file__]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    # MuJoCo adds lines of its own.
    assert {"flax", "numpyro", "optimistix", "brax"} <= set(done.stdout.splitlines())


if __name__ == "__main__":
    jax.device_put_replicated = device_put_replicated
    for run in flax, numpyro, optimistix, brax:
        run()
        print(run.__name__)
    modules = [m for k, m in sys.modules.items() if k.partition(".")[0] == "optax"]
    assert modules and all(str(ROOT / "stepax") in str(m.__file__) for m in modules)
