"""Praxis: the optimizers and schedules that Fiddle configures."""

from functools import partial

from ..project import Project


PROJECT = Project(
    repository="google/praxis",
    commit="feeaff19915ca9c3de8b372b7427d15c81f0d757",
    packages="chex clu einops fiddle flax jax-bitempered-loss jaxtyping lingvo "
    "optax-shampoo orbax-checkpoint tensorflow-cpu typeguard",
    tests=("praxis/optimizers_test.py",),
)

NAMES = (
    "Sgd Lamb Lars ShardedSgd ShardedAdagrad Adam Lion Adafactor Adagrad "
    "ShardedAdafactor"
).split()
# Beside their defaults.
OPTIONS = {
    "Adam, regularized": ("Adam", {"l2_regularizer_weight": 0.01}),
    "Adam, sharded": ("Adam", {"sharded_adam": True}),
    "Sgd, momentum": ("Sgd", {"momentum": 0.9, "nesterov": True}),
    "Adam, ema": ("Adam", {"ema_decay": 0.9}),
    "Adam, decay": ("Adam", {"decoupled_weight_decay": 0.01}),
}


def optimizers():
    found = {k: partial(made, k) for k in NAMES}
    return found | {k: partial(made, kind, **x) for k, (kind, x) in OPTIONS.items()}


def made(name, **options):
    from praxis import base_hyperparams, optimizers, pax_fiddle, schedules

    rate = pax_fiddle.Config(schedules.LinearRampupCosineDecay)
    steps = {"warmup_steps": 5, "decay_start": 6, "decay_end": 100, "max": 1.0}
    for key, x in steps.items():
        setattr(rate, key, x)
    kind = getattr(optimizers, name)
    config = pax_fiddle.Config(kind, learning_rate=0.01, lr_schedule=rate, **options)
    return base_hyperparams.instantiate(config).get_grad_transformation()


def schedules():
    from praxis import base_hyperparams, pax_fiddle, schedules

    def schedule(name, **options):
        config = pax_fiddle.Config(getattr(schedules, name), **options)
        return base_hyperparams.instantiate(config).value_at

    ramp = {"warmup_steps": 10, "decay_start": 11, "decay_end": 100, "max": 1.0}
    line = {"start": (0, 1.0), "limit": (100, 0.1)}
    options = {
        "Constant": {},
        "Linear": line,
        "Exponential": line,
        "Cosine": {"initial_value": 1.0, "total_steps": 100},
        "LinearRampupPolynomialDecay": {**ramp, "power": 1},
        "LinearRampupCosineDecay": ramp,
        "LinearRampupExponentialDecay": {**ramp, "min_ratio": 0.01},
        "PiecewiseConstant": {"boundaries": [10, 100], "values": [1.0, 0.1, 0.01]},
        "Transformer": {"warmup_steps": 10, "model_dim": 8},
        "SqrtDecay": {},
        "LinearRampupSqrtDecay": {"warmup_steps": 10, "peak": 1.0},
    }
    return {k: partial(schedule, k, **x) for k, x in options.items()}
