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


MATRICES = (
    "dion", "dion2", "galore", "kl_shampoo", "kl_soap", "muon", "muown", "normuon",
    "psgd_kron", "scion", "shampoo", "soap", "splus",
)  # fmt: skip
SELF_TUNING = (
    "cocob", "dadapt_adamw", "dadapt_sgd", "dog", "dowg", "gpa", "gpa_adamw",
    "mechanize", "momo", "momo_adam", "polyak_sgd", "prodigy", "schedule_free",
    "schedule_free_adamw", "schedule_free_eval_params",
    "schedule_free_radam", "schedule_free_sgd",
)  # fmt: skip

# By the file of each page, in the order of the navigation.
SUBJECTS = {
    "optimizers": Subject(
        "Optimizers",
        "Adam, SGD, Lion and others, which take an entry at a time, or a layer",
    ),
    "matrix_optimizers": Subject(
        "Optimizers for matrices",
        "Muon, SOAP, Shampoo and others, which take a matrix as a whole",
        names=(*MATRICES, "GaLoreDimensionNumbers", "MuonDimensionNumbers"),
    ),
    "self_tuning": Subject(
        "Optimizers without a rate or a schedule",
        "they find the learning rate, or need no decay of it",
        names=SELF_TUNING,
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
            "measure_with_ema", "skip_large_updates",
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
            "ArrayTree", "MaskOrFn", "OptState", "Params", "ScalarOrSchedule",
            "Updates",
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


def _of_factory(name: str, value: Any) -> str | None:
    """That of an optimizer, of its parts, or of a wrapper; `None` for anything else."""
    row = ROWS.get(name)
    if row is None or row.factory is not value:
        return None
    is_part = value.__module__.startswith("stepax._optimizers.")
    return KINDS.get(row.kind) or ("parts" if is_part else "transformations")
