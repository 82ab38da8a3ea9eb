"""The subjects of the reference: on which of its pages a public name is explained.

Users look for what a thing does, and not for the module from which it is imported; a
page for each module would have a quarter of all names on that of `stepax`.
"""

from typing import Any, NamedTuple

from stepax._engine.factories.registry import ROWS


class Subject(NamedTuple):
    """A page of the reference.

    title: its heading.
    about: what its names are for.
    modules: all their names belong here, unless they are named elsewhere.
    names: names of other modules.
    """

    title: str
    about: str
    modules: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


# The twelve that most users need of all optimizers, and for what.
RECOMMENDED = {
    "adamw": "anything, if you do not know where to start",
    "adam": "losses without weight decay: reinforcement learning, physics, small fits",
    "sgd": "convolutional networks, with momentum and a schedule",
    "muon": "networks whose hidden layers are matrices, such as transformers",
    "soap": "the same, where a gradient takes much longer than an update",
    "lion": "half of AdamW's state",
    "adafactor": "almost no state",
    "schedule_free_adamw": "runs whose length is not known",
    "prodigy": "learning rates that nobody tunes",
    "lamb": "batches of tens of thousands of examples",
    "adagrad": "sparse gradients, as of embeddings",
    "lbfgs": "losses without noise",
}

# All of them by task, each once.
TASKS = {
    "Adam and variants": (
        "adam", "adamw", "nadam", "nadamw", "adamax", "adamaxw", "amsgrad", "radam",
        "adabelief", "yogi", "laprop", "adopt", "adam_atan2", "stable_adamw", "acprop",
        "adan", "ademamix", "simplified_ademamix", "mars", "novograd", "cautious_adamw",
        "grams", "optimistic_adam", "optimistic_adam_v2",
    ),
    "Gradient descent": (
        "sgd", "noisy_sgd", "madgrad", "fromage", "rprop",
        "optimistic_gradient_descent",
    ),
    "Sign of the gradient": ("lion", "cautious_lion", "sign_sgd", "signum"),
    "Sparse gradients": ("adagrad", "adadelta", "rmsprop"),
    "Little memory": ("adafactor", "came", "sm3", "adam_mini", "galore", "apollo"),
    "Matrices": (
        "muon", "normuon", "muown", "dion", "dion2", "scion", "soap", "kl_soap",
        "shampoo", "kl_shampoo", "splus", "psgd_kron",
    ),
    "Large batches": ("lamb", "lars"),
    "Learning-rate-free": (
        "prodigy", "dadapt_adamw", "dadapt_sgd", "dog", "dowg", "cocob", "momo",
        "momo_adam", "polyak_sgd",
    ),
    "Schedule-free": (
        "schedule_free_adamw", "schedule_free_sgd", "schedule_free_radam", "gpa_adamw",
    ),
    "Second derivatives": ("adahessian", "sophia"),
    "Losses without noise": ("lbfgs", "lbfgsb"),
}  # fmt: skip

# By the file of each page, in the order of the navigation.
SUBJECTS = {
    "optimizers": Subject(
        "Optimizers", "all of them by task, the recommended ones first"
    ),
    "transformations": Subject(
        "Transformations",
        "clipping, noise, decay, scaling, averages of gradients",
        modules=("stepax.experimental.aggregating",),
        names=(
            "per_example_global_norm_clip", "per_example_layer_norm_clip",
            "unitwise_clip", "qk_clip", "unitwise_norm", "weight_decay",
        ),
    ),
    "parts": Subject(
        "Parts of optimizers", "what optimizers are chained of: `scale_by_adam`, ..."
    ),
    "wrappers": Subject(
        "Wrappers",
        "chains, masks, groups, accumulation, averages, low-bit and master weights",
        names=(
            "MultiSteps", "ApplyEvery", "eval_params", "swap_averages",
            "SwappedAverage", "LookaheadParams", "master_params", "set_master_params",
            "inject_hyperparams", "inject_stateful_hyperparams", "hyperparams",
            "ConditionFn", "MaskedNode", "ShouldSkipUpdateFunction",
            "measure_with_ema", "schedule_free_eval_params", "skip_large_updates",
            "skip_not_finite", "strict_keywords",
        ),
    ),
    "schedules": Subject(
        "Learning-rate schedules",
        "from the count of steps to a number",
        modules=("stepax.schedules",),
    ),
    "losses": Subject("Losses", "for each example", modules=("stepax.losses",)),
    "steps": Subject(
        "Steps and parameters",
        "applying updates, in one pass or in the backward pass",
        modules=("stepax.microbatching",),
        names=(
            "apply_updates", "step", "fused_scan", "FusedScan", "incremental_update",
            "periodic_update", "value_and_grad_from_state",
        ),
    ),
    "minimization": Subject(
        "Minimization",
        "minimizers, line searches, constraints, projections",
        modules=("stepax.solve.constraints", "stepax.projections"),
        names=("ZoomLinesearchInfo", "nnls"),
    ),
    "solving": Subject(
        "Equations, least squares, proximal operators",
        "roots, fixed points, fits, terms that are not smooth",
        modules=("stepax.solve", "stepax.solve.prox"),
        names=("proximal",),
    ),
    "trees": Subject(
        "Trees and paths",
        "arithmetic of trees, states by name",
        modules=("stepax.tree", "stepax.tree_utils"),
    ),
    "checkpoints": Subject(
        "Checkpoints and configurations",
        "saving states, optimizers as data",
        modules=("stepax.checkpoint",),
        names=("from_config", "to_config"),
    ),
    "distribution": Subject(
        "Many devices", "sharded states, exchanges", modules=("stepax.distributed",)
    ),
    "measuring": Subject(
        "Measuring, diagnosing and tuning",
        "metrics, tests, sweeps, learning rates for wider models",
        modules=("stepax.metrics", "stepax.testing", "stepax.transfer"),
        names=(
            "Diagnosis", "Finding", "SweepFit", "SweepResult", "describe", "diagnose",
            "sweep",
        ),
    ),
    "rules": Subject(
        "Your own",
        "writing a transformation, and what one consists of",
        modules=("stepax.rules",),
        names=(
            "GradientTransformation", "GradientTransformationExtraArgs",
            "TransformInitFn", "TransformUpdateExtraArgsFn", "TransformUpdateFn",
            "init_empty_state", "with_extra_args_support",
        ),
    ),
    "numerics": Subject(
        "Numerical functions",
        "norms, second order, assignment, perturbations",
        modules=("stepax.assignment", "stepax.perturbations", "stepax.second_order"),
        names=(
            "global_norm", "matrix_inverse_pth_root", "multi_normal", "power_iteration",
            "safe_increment", "safe_int32_increment", "safe_norm",
            "safe_root_mean_squares", "scale_gradient",
        ),
    ),
    "interop": Subject(
        "With other libraries",
        "Optax and Keras",
        modules=("stepax.interop.keras", "stepax.interop.optax"),
    ),
    "types": Subject(
        "Types",
        "what annotations say",
        names=(
            "ArrayTree", "GaLoreDimensionNumbers", "MaskOrFn", "MuonDimensionNumbers",
            "OptState", "Params", "ScalarOrSchedule", "Updates",
        ),
    ),
    "states": Subject("States", "the fields of what transformations keep"),
}  # fmt: skip

KINDS = {
    "functional": "optimizers",
    "optimizer": "optimizers",
    "wrapper": "wrappers",
    "aggregate": "transformations",
    "measure": "transformations",
}
WORDS = {
    "schedule": "schedules",
    "minimize": "minimization",
    "Minimize": "minimization",
}


def subject(module: str, name: str, value: Any) -> str:
    """The key in `SUBJECTS` of a public name of a module.

    Raises a `LookupError` if nothing says where users would look for it.
    """
    named = (k for k, x in SUBJECTS.items() if name in x.names)
    of_module = (k for k, x in SUBJECTS.items() if module in x.modules)
    by_word = (k for word, k in WORDS.items() if word in name)
    found = next(named, None) or _of_factory(name, value)
    if found is None and name.endswith("State"):
        return "states"
    found = found or next(of_module, None) or next(by_word, None)
    if found is None:
        said = f"`{module}.{name}` has no place in the reference: add it to `SUBJECTS`"
        raise LookupError(f"{said} in website/subjects.py")
    return found


def is_optimizer(name: str, value: Any) -> bool:
    """Whether it has a page of its own, a card."""
    row = ROWS.get(name)
    return row is not None and row.factory is value and row.kind == "optimizer"


def _of_factory(name: str, value: Any) -> str | None:
    """That of an optimizer, of its parts, or of a wrapper; `None` for anything else."""
    row = ROWS.get(name)
    if row is None or row.factory is not value:
        return None
    is_part = value.__module__.startswith("stepax._optimizers.")
    return KINDS.get(row.kind) or ("parts" if is_part else "transformations")
