"""The names of public modules: which are loaded late, and hints for missing ones."""

import difflib
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any


# Names of `stepax` that are loaded on first access, so that it is imported fast, by the
# modules in which they are; modules alone are their own names.  They are not in the
# registry of factories, which are all loaded eagerly.
HOMES = dict.fromkeys(
    ("assignment", "checkpoint", "contrib", "distributed", "experimental", "interop",
     "losses", "metrics", "microbatching", "perturbations", "projections", "rules",
     "second_order", "testing", "transfer"),
    (),
) | {
    "_config.from_config": ("from_config",),
    "_config.to_config": ("to_config",),
    "_diagnose.diagnose": ("diagnose",),
    "_diagnose.findings": ("Diagnosis", "Finding"),
    "_engine.inspect.describe": ("describe",),
    "_engine.inspect.hyperparams": ("hyperparams",),
    "_functions.fused_scan": ("FusedScan", "fused_scan"),
    "_functions.linear_algebra": ("matrix_inverse_pth_root", "nnls", "power_iteration"),
    "_functions.multi_normal": ("multi_normal",),
    "_sweep.driver": ("sweep",),
    "_sweep.fit": ("SweepFit",),
    "_sweep.result": ("SweepResult",),
    "losses": (
        "convex_kl_divergence", "cosine_distance", "cosine_similarity", "ctc_loss",
        "ctc_loss_with_forward_probs", "generalized_kl_divergence", "hinge_loss",
        "huber_loss", "kl_divergence", "l2_loss", "log_cosh", "ntxent",
        "safe_softmax_cross_entropy", "sigmoid_binary_cross_entropy",
        "sigmoid_focal_loss", "smooth_labels", "softmax_cross_entropy",
        "softmax_cross_entropy_with_integer_labels", "squared_error",
    ),
    "microbatching": ("microbatch",),
    "solve._minimize.driver": ("minimize",),
}  # fmt: skip
# These warn, and come from `contrib`.
MOVED = (
    "DifferentiallyPrivateAggregateState",
    "differentially_private_aggregate",
    "dpsgd",
)

# What `pip install` takes: the folder of a clone, until there is a release.
INSTALLS = "."


def install(extra: str) -> str:
    """The command that installs Stepax with an extra, for errors."""
    where = "" if INSTALLS == "stepax" else " in a clone"
    return f'`pip install "{INSTALLS}[{extra}]"`{where}'


# The modules in which a missing name is looked for.
_MODULES = ("stepax", *(
    f"stepax.{name}" for name in (
        "contrib", "rules", "solve", "losses", "metrics", "schedules", "tree",
        "transforms", "projections", "distributed", "checkpoint", "solve.constraints",
        "solve.prox", "microbatching", "perturbations", "assignment", "second_order",
        "testing", "transfer", "experimental.aggregating",
    )
))  # fmt: skip

# Names of PyTorch, Keras, SciPy and JAXopt, and ours from before the first release, by
# today's; those after `None` have no counterpart, whatever they resemble.  A name that
# has only moved to another module is found without a row.
_OTHERS = {
    "examples/compare": "Comparison compare",
    "examples/coordinates.py": "Coordinates coordinate_check",
    "stepax": "optim optimizers",
    "jax.tree.map": "map tree_map",
    "stepax.adam": "SparseAdam",
    "stepax.apply_updates": "apply_gradients",
    "stepax.assignment.hungarian_algorithm": "linear_sum_assignment",
    "stepax.averages": "ASGD AveragedModel EMA ExponentialMovingAverage average_params "
    "ema_params polyak_average swa",
    "stepax.checkpoint.restore": "load load_state_dict restore_checkpoint",
    "stepax.checkpoint.save": "save_checkpoint",
    "stepax.clip": "clip_by_value clip_grad_value_",
    "stepax.clip_by_global_norm": "clip_grad clip_grad_norm clip_grad_norm_ "
    "clip_gradients clip_grads_with_norm_ grad_clip gradient_clipping",
    "stepax.contrib.diloco": "outer",
    "stepax.contrib.DiLoCoState": "OuterState",
    "stepax.contrib.lazy_rows": "lazy",
    "stepax.contrib.reduce_on_plateau": "ReduceLROnPlateau",
    "stepax.contrib.row_states": "rowwise",
    "stepax.contrib.schedule_free_adamw": "AdamWScheduleFree",
    "stepax.contrib.StreamingDiLoCoState": "StreamingOuterState",
    "stepax.cosine_decay_schedule": "CosineAnnealingLR CosineDecay SWALR",
    "stepax.cosine_onecycle_schedule": "OneCycleLR",
    "stepax.distributed.audit": "Link",
    "stepax.dynamic_loss_scale": "GradScaler LossScaleOptimizer",
    "stepax.eval_params": "averaged_params ema_nesterov_eval_params gpa_eval_params "
    "splus_eval_params",
    "stepax.exponential_decay": "ExponentialDecay ExponentialLR StepLR",
    "stepax.freeze": "freeze_params",
    "stepax.from_config": "deserialize",
    "stepax.hinge_loss": "Hinge hinge",
    "stepax.huber_loss": "SmoothL1Loss smooth_l1_loss",
    "stepax.hyperparams": "get_learning_rate",
    "stepax.inject_hyperparams": "set_learning_rate",
    "stepax.join_schedules": "SequentialLR",
    "stepax.kl_divergence": "KLDivLoss kl_div",
    "stepax.linear_schedule": "LinearLR",
    "stepax.losses.dice_loss": "Dice dice",
    "stepax.losses.multiclass_hinge_loss": "CategoricalHinge MultiMarginLoss "
    "categorical_hinge multi_margin_loss",
    "stepax.low_bit_states": "Adam8bit AdamW8bit Lion8bit",
    "stepax.minimize": "GradientDescent NonlinearCG OptaxSolver ProjectedGradient "
    "ProximalGradient ScipyBoundedMinimize ScipyMinimize fmin fmin_bfgs fmin_cg "
    "fmin_cobyla fmin_l_bfgs_b fmin_ncg fmin_powell fmin_slsqp fmin_tnc fminbound "
    "minimize_scalar",
    "stepax.MultiSteps": "accumulate_gradients gradient_accumulation",
    "stepax.piecewise_constant_schedule": "ConstantLR MultiStepLR "
    "PiecewiseConstantDecay",
    "stepax.polynomial_schedule": "PolynomialDecay PolynomialLR",
    "stepax.scale_by_zoom_linesearch": "line_search",
    "stepax.schedules": "LRScheduler LambdaLR LearningRateSchedule MultiplicativeLR "
    "lr_scheduler",
    "stepax.schedules.warmup_inverse_sqrt_schedule": "noam",
    "stepax.sgd": "momentum nesterov",
    "stepax.sgdr_schedule": "CosineAnnealingWarmRestarts CosineDecayRestarts",
    "stepax.sigmoid_binary_cross_entropy": "BCEWithLogitsLoss BinaryCrossentropy "
    "MultiLabelSoftMarginLoss binary_cross_entropy_with_logits binary_crossentropy "
    "multilabel_soft_margin_loss",
    "stepax.sigmoid_focal_loss": "BinaryFocalCrossentropy binary_focal_crossentropy",
    "stepax.softmax_cross_entropy": "CategoricalCrossentropy categorical_crossentropy",
    "stepax.softmax_cross_entropy_with_integer_labels": "CrossEntropyLoss "
    "SparseCategoricalCrossentropy cross_entropy sparse_categorical_crossentropy",
    "stepax.solve.constraints.equality": "NonlinearConstraint LinearConstraint",
    "stepax.solve.fixed_point": "AndersonAcceleration AndersonWrapper "
    "FixedPointIteration",
    "stepax.solve.History": "MinimizeHistory SolveHistory",
    "stepax.solve.least_squares": "GaussNewton LevenbergMarquardt "
    "ScipyBoundedLeastSquares ScipyLeastSquares curve_fit leastsq lsq_linear",
    "stepax.solve.prox.group_l2": "prox_group_lasso",
    "stepax.solve.prox.l1": "prox_lasso",
    "stepax.solve.prox.l2_squared": "prox_ridge",
    "stepax.solve.quadratic_program": "BoxCDQP BoxOSQP CvxpyQP EqualityConstrainedQP "
    "OSQP linprog quadprog",
    "stepax.solve.Result": "LeastSquaresResult MinimizeResult OptimizeResult "
    "SolveResult",
    "stepax.solve.root": "Bisection Broyden ScipyRootFinding anderson bisect brenth "
    "brentq broyden1 broyden2 fsolve newton newton_krylov ridder root_scalar toms748",
    "stepax.solve.Status": "MinimizeStatus SolveStatus",
    "stepax.squared_error": "MSELoss mse_loss",
    "stepax.strict_keywords": "strict",
    "stepax.to_config": "serialize",
    "stepax.tree.norm": "get_total_norm",
    "stepax.weight_decay": "add_cautious_decayed_weights decay",
    "stepax.with_weight_decay": "with_decay",
    None: "BCELoss Callback ChainedScheduler CyclicLR L1Loss LinearCrossEntropyLoss "
    "MarginRankingLoss MultiLabelMarginLoss NLLLoss NoConvergence OptStep "
    "SoftMarginLoss binary_cross_entropy brute check_grad grad kl_projection_birkhoff "
    "kl_projection_transport l1_loss linear_cross_entropy margin_ranking_loss "
    "multilabel_margin_loss nll_loss projection_affine_set projection_birkhoff "
    "projection_box_section projection_polyhedron projection_sparse_simplex "
    "projection_transport prox_non_negative_lasso prox_non_negative_ridge skip_init "
    "soft_margin_loss spectral_norm update_bn weight_norm zero_grad",
}
_RENAMED = {name: own for own, names in _OTHERS.items() for name in names.split()}


def missing(module: str, name: str) -> AttributeError:
    """The error for `module.name`, with suggestions of existing names."""
    said = f"module {module!r} has no attribute {name!r}"
    return AttributeError(said + hint(module, name))


def hint(module: str, name: str) -> str:
    """Suggestions for `module.name` as text; empty if there are none."""
    # Tools look for names of their own in each module, in vain and often.
    found = [] if name.startswith("_") else _nearest(module, name)
    return f"; did you mean {' or '.join(f'`{x}`' for x in found)}?" if found else ""


def attributes(
    module: str, later: Mapping[str, Iterable[str]] | None = None
) -> tuple[Callable[[], list[str]], Callable[[str], Any]]:
    """The `__dir__` and the `__getattr__` of a public module.

    The former lists public names only, without imports; the latter raises an error with
    suggestions.  Hide them from type checkers, for which a module with a `__getattr__`
    has every name.

    later: submodules, and the names in them that are loaded on first access.
    """
    later = later or {}
    homes = {name: home for home, names in later.items() for name in names}

    def show():
        return import_module(module).__all__

    def find(name):
        if name in homes:
            return vars(import_module(f"{module}.{homes[name]}"))[name]
        if name in later:
            return import_module(f"{module}.{name}")
        raise missing(module, name)

    return show, find


def _nearest(module: str, name: str) -> list[str]:
    if name in _RENAMED:
        return [x for x in (_RENAMED[name],) if x]
    names = {home: import_module(home).__all__ for home in (*_MODULES, module)}
    elsewhere = [f"{home}.{name}" for home, known in names.items() if name in known]
    if name.removeprefix("tree_") in names["stepax.tree"]:  # of `optax.tree_utils`
        elsewhere.append(f"stepax.tree.{name.removeprefix('tree_')}")
    if elsewhere:
        return elsewhere[:1]
    homes = {x: home for home in reversed(_MODULES) for x in names[home]}
    homes |= dict.fromkeys(names[module], module)
    # Without underscores: classes of other libraries are written together.
    lower = {x.lower().replace("_", ""): f"{home}.{x}" for x, home in homes.items()}
    plain = name.lower().replace("_", "")
    near = difflib.get_close_matches(plain, lower, n=2, cutoff=0.7)
    return [lower[x] for x in ([plain] if plain in lower else near)]
