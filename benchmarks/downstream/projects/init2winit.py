"""init2winit: the optimizers that `get_optimizer` chooses by name."""

from functools import partial

from ..project import Project


PROJECT = Project(
    repository="google/init2winit",
    commit="afd5a84dbb865f41bf8d6b75181d5b421d73806b",
    packages="chex clu flax jax-bitempered-loss jraph ml_collections optax-shampoo "
    "orbax-checkpoint pandas tensorflow-cpu",
    tests=(
        "init2winit/optimizer_lib/kitchen_sink/_src/test_core.py",
        "init2winit/optimizer_lib/kitchen_sink/_src/test_mask.py",
        "init2winit/optimizer_lib/kitchen_sink/_src/test_preconditioner.py",
        "init2winit/optimizer_lib/kitchen_sink/_src/test_transform.py",
        "init2winit/optimizer_lib/sla_test.py",
        "init2winit/optimizer_lib/test_utils.py",
    ),
)

BETAS = {"beta1": 0.9, "beta2": 0.99}
EPS = {"eps": 1e-8}
DECAY = {"weight_decay": 0.01}
FACTORED = {
    "min_dim_size_to_factor": 2,
    "adafactor_decay_rate": 0.8,
    "decay_offset": 0,
    "multiply_by_parameter_scale": True,
    "clipping_threshold": 1.0,
    "momentum": None,
    "epsilon": 1e-30,
    "factored": True,
}
ESTIMATED = {"estim_lr0": 1e-3}
SAFE = {"estim_lr_coef": 1.0, "safeguard_warmup": False}
BOUND = {"lower_bound": 0.0, "adapt_lower_bound": False}
MECHANIC = {"mech_eps": 1e-8, "mech_s_init": 1e-2, "mech_num_betas": 6}
SETTINGS = {
    "sgd": {},
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9},
    "adam": {**BETAS, "epsilon": 1e-8, **DECAY},
    "adafactor": {**FACTORED, **DECAY},
    "polyak_sgd": {"f_min": 0.0, "max_learning_rate": 1.0, **EPS},
    "dadapt_adamw": {**BETAS, **EPS, **ESTIMATED, **DECAY},
    "prodigy": {**BETAS, **EPS, **ESTIMATED, **SAFE, **DECAY},
    "cocob": {"alpha": 100, **EPS, **DECAY},
    "momo": {"beta": 0.9, **BOUND, **DECAY},
    "momo_adam": {**BETAS, **EPS, **BOUND, **DECAY},
    "dowg": {**EPS, **DECAY},
}
SAM = {"use_sam": True, "rho": 0.05}


def optimizers():
    found = {k: partial(made, k, x) for k, x in SETTINGS.items()}
    mechanic = {**SETTINGS["adam"], "use_mechanic": True, "mech_weight_decay": 0.01}
    return found | {"adam, mechanic": partial(made, "adam", {**mechanic, **MECHANIC})}


def made(name, options):
    from init2winit.optimizer_lib.optimizers import get_optimizer
    from ml_collections import ConfigDict

    given = {"optimizer": name, "opt_hparams": options, "batch_size": 8}
    return get_optimizer(ConfigDict({**given, "l2_decay_factor": None}))


def train(optimizer):
    """With the learning rate put into the state before each step, as its trainer."""
    from types import SimpleNamespace

    from init2winit.optimizer_lib.optimizers import inject_learning_rate

    from .. import child

    init, update = optimizer

    def stepped(grads, state, params, value):
        return update(grads, inject_learning_rate(state, 0.05), params, value=value)

    return child.train(SimpleNamespace(init=init, update=stepped), with_value=True)
