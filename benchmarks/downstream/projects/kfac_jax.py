"""KFAC-JAX: the Optax optimizers that its examples build, and all their schedules.

Each trains the small model by the `step` of their wrapper.
"""

import importlib
from functools import partial

from ..project import STEPS, Project


PROJECT = Project(
    repository="google-deepmind/kfac-jax",
    commit="babd85368ca209861ac947c829c0cf57592f7d22",
    packages="chex distrax dm-haiku dm-tree immutabledict ml_collections "
    "tensorflow-cpu tensorflow_datasets tfp-nightly",
    tests=("tests/test_optax_interface.py", "-k", "diagonal_full0 or diagonal_full2"),
    stubs=("jaxline", "more_itertools"),
)
FALL = {"init_value": 0.1, "end_value": 0.01, "start": 5}
SCHEDULES = {
    "fixed": {"value": 0.1},
    "cosine": {"peak_value": 0.1, "end_value": 0.001},
    "exponential_decay": FALL,
    "polynomial": FALL,
    "inverse_time_decay": FALL,
    "piecewise_interpolated": {"boundaries": [5, 15], "vals": [0.1, 0.05, 0.01]},
}
WARM = {"warmup_duration": 4, "warmup_start_value": 0.0}
OPTIMIZERS = {
    "adam": {},
    "adamw": {"weight_decay": 0.1},
    "lamb": {},
    "lion": {},
    "rmsprop": {"momentum": 0.9},
    "sgd": {"momentum": 0.9, "nesterov": True},
}
FREE = {"enabled": True, "kwargs": {"b1": 0.9}}
PUBLISHED = ("lrelunet101_imagenet", "resnet50_imagenet")


def optimizers():
    cosine = {"name": "cosine", **SCHEDULES["cosine"], **WARM}
    found = {k: partial(build, k, cosine, x) for k, x in OPTIMIZERS.items()}
    for name in ("adam", "sgd"):
        settings = (name, cosine, OPTIMIZERS[name], FREE)
        found[f"{name}, schedule-free"] = partial(build, *settings)
    return found | {f"sgd of {x}": partial(published, x) for x in PUBLISHED}


def schedules():
    plain = {k: {"name": k, **x} for k, x in SCHEDULES.items()}
    warm = {f"{k}, warm-up": x | WARM for k, x in plain.items()}
    return {k: partial(schedule, x) for k, x in (plain | warm).items()}


def schedule(settings):
    from examples.schedules import construct_schedule

    return construct_schedule(dataset_size=8, total_steps=100, **settings)


def published(name):
    """The first-order optimizer in the settings of an example."""
    config = importlib.import_module(f"examples.{name}.pipeline").get_config()
    found = config.experiment_kwargs.config.optimizer["sgd"].to_dict()
    return build("sgd", found.pop("learning_rate_schedule"), found)


def build(name, schedule, settings, free=None):
    from examples.optimizers import create_optimizer
    from ml_collections import ConfigDict

    from ..child import loss

    config = {name: {"learning_rate_schedule": schedule, **settings}}
    in_epochs = schedule.get("mode") in ("epochs", "fraction")
    return create_optimizer(
        name,
        ConfigDict(config),
        lambda params, batch: loss(params, batch[0]),
        l2_reg=0.0,
        has_aux=False,
        has_func_state=False,
        has_rng=False,
        model_func_for_estimator=None,
        dataset_size=2,
        train_total_batch_size=1,
        total_steps=None if in_epochs else STEPS,
        total_epochs=STEPS / 2 if in_epochs else None,
        pmap_axis_name="batch",
        schedule_free_config=free and ConfigDict(free),
    )


def train(optimizer):
    import jax
    import jax.numpy as jnp

    from ..child import small_model

    params = jax.tree.map(lambda x: x[None], small_model())
    batches = iter([jnp.full((1, 1), t) for t in range(STEPS + 1)])
    key, stats = jax.random.split(jax.random.key(0), 1), {}
    state = optimizer.init(params, key, next(batches))
    for t in range(STEPS):
        given = (params, state, key, batches)
        params, state, stats = optimizer.step(*given, global_step_int=t)
    stats = {k: stats[k] for k in ("loss", "learning_rate")}
    return {"params": params, "state": jax.tree.leaves(state), **stats}
