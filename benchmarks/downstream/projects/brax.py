"""Brax: the agents that build an optimizer, in an environment without physics."""

from functools import partial
from importlib import import_module

from ..project import Project, put_replicated


PROJECT = Project(
    repository="google/brax",
    commit="0b96d056328d15ea7ebfd3ce07f42be72ec76e40",
    packages="absl-py brax etils flax mujoco mujoco-mjx orbax-checkpoint",
    tests=(
        "brax/training/agents/bc/train_test.py",
        "brax/training/agents/ppo/losses_test.py",
    ),
    patched=("`jax.device_put_replicated`, which JAX removed, is an array of copies",),
)
LAYERS = {"hidden_layer_sizes": (4,)}
TWO = {"policy_hidden_layer_sizes": (4,), "value_hidden_layer_sizes": (4,)}
COMMON = {"episode_length": 4, "num_eval_envs": 2, "seed": 1}
PPO = {
    "num_timesteps": 160,
    "num_envs": 4,
    "unroll_length": 2,
    "batch_size": 4,
    "num_minibatches": 2,
    "num_updates_per_batch": 1,
}
SAC = {
    "num_timesteps": 80,
    "num_envs": 4,
    "batch_size": 4,
    "min_replay_size": 8,
    "max_replay_size": 80,
}
AGENTS = {
    "apg": ("apg", LAYERS, {"policy_updates": 20, "horizon_length": 4, "num_envs": 2}),
    "es": ("es", LAYERS, {"num_timesteps": 320, "population_size": 4}),
    "ppo": ("ppo", TWO, PPO),
    "ppo, clipping": ("ppo", TWO, {**PPO, "max_grad_norm": 1.0}),
    "ppo, adaptive rate": (
        "ppo",
        TWO,
        {**PPO, "max_grad_norm": 1.0, "learning_rate_schedule": "ADAPTIVE_KL"},
    ),
    "sac": ("sac", LAYERS, SAC),
}


def patch():
    put_replicated()


def optimizers():
    return {k: partial(agent, *x) for k, x in AGENTS.items()}


def agent(name, layers, settings):
    """The training run, whose optimizer is within."""
    networks = import_module(f"brax.training.agents.{name}.networks")
    make = getattr(networks, f"make_{name}_networks")
    run = import_module(f"brax.training.agents.{name}.train").train
    return partial(run, network_factory=partial(make, **layers), **COMMON, **settings)


def train(run):
    from brax import envs

    _, params, metrics = run(envs.get_environment("fast"))
    kept = {k: x for k, x in metrics.items() if "loss" in k or "norm" in k}
    return {"params": params, "metrics": kept}
