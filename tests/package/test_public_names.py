"""What a user sees of a public module: `dir`, TAB, `import *`, and suggestions."""

import inspect
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import pytest
from inside import _MODULES
from loops import each
from public import MODULES, PUBLIC

import stepax


INTEROP = "stepax.interop.optax"
KERAS = "stepax.interop.keras"
MOVED = set(stepax._MOVED)  # given by `import *`, with a warning, as by Optax's
moved = pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")


def test_suggestions_come_from_public_modules():
    again = {"stepax.tree_utils", "stepax.experimental"}  # names of other modules
    assert set(PUBLIC) - set(_MODULES) == again | {"stepax.interop", INTEROP, KERAS}


@pytest.mark.slow
def test_the_switch_is_found_without_another_import():
    program = "import sys, stepax; assert 'stepax.interop' not in sys.modules; "
    program += "print(dir(stepax.interop), stepax.interop.optax.to_optax.__name__)"
    said = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert said == "['keras', 'optax'] to_optax\n"


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_module_shows_its_public_names_alone(name):
    module = import_module(name)
    assert "__all__" in vars(module)
    shown = dir(module)
    hidden = MOVED if module is stepax else set()
    assert set(shown) == set(module.__all__) - hidden
    for x in shown:
        value = getattr(module, x)
        if isinstance(value, Mapping):
            continue  # a constant has no home
        home = value.__name__ if inspect.ismodule(value) else value.__module__
        is_alias = x.endswith(("Tree", "OrFn", "OrSchedule", "Params", "State"))
        assert home.startswith("stepax") or is_alias or x in ("Schedule", "Updates")


@moved
@pytest.mark.parametrize("path", MODULES)
def test_star_imports_give_all_that_they_give_of_optax(path):
    theirs = import_module(f"optax{path}")
    own = {
        x
        for x in starred(f"optax{path}")
        if not isinstance(getattr(theirs, x), ModuleType)
        and str(getattr(getattr(theirs, x), "__module__", "")).startswith("optax")
    }
    assert own and own <= starred(f"stepax{path}")


def test_what_optax_lacks_has_one_path():
    homes: dict[int, set[str]] = {}
    for module in PUBLIC:
        if module not in (KERAS, INTEROP):
            ours = import_module(module)
            for name in dir(ours):
                value = getattr(ours, name)
                if not isinstance(value, ModuleType):
                    homes.setdefault(id(value), set()).add(f"{module}.{name}")
    twice = {x for paths in homes.values() if len(paths) > 1 for x in paths}
    # A name of a type, of any tree of arrays, and what most users of `solve` need.
    both = {"stepax.ArrayTree", "stepax.minimize", "stepax.solve.minimize"}
    assert {x for x in twice if not is_of_optax(x)} == both


def is_of_optax(path: str) -> bool:
    module, _, name = path.rpartition(".")
    theirs = "optax" + module.removeprefix("stepax")
    return find_spec(theirs) is not None and hasattr(import_module(theirs), name)


def starred(module: str) -> set[str]:
    names = {}
    exec(f"from {module} import *", names)
    return {x for x in names if not x.startswith("_")}


@pytest.mark.parametrize(
    ("module", "asked", "suggested"),
    [
        ("stepax", "muon", "stepax.contrib.muon"),
        ("stepax", "minimise", "stepax.minimize"),
        ("stepax", "adamww", "stepax.adamw"),
        ("stepax", "AdamW", "stepax.adamw"),
        ("stepax", "schedule_free_adam", "stepax.contrib.schedule_free_adamw"),
        ("stepax", "projection_simplx", "stepax.projections.projection_simplex"),
        ("stepax.contrib", "adamw", "stepax.adamw"),
        ("stepax.contrib", "prodgy", "stepax.contrib.prodigy"),
        ("stepax.tree", "zeros_lik", "stepax.tree.zeros_like"),
        ("stepax.losses", "huber_los", "stepax.losses.huber_loss"),
        ("stepax.schedules", "cosine_decay", "stepax.schedules.cosine_decay_schedule"),
        ("stepax.tree_utils", "tree_zeros_lik", "stepax.tree_utils.tree_zeros_like"),
        (INTEROP, "to_stepx", f"{INTEROP}.to_stepax"),
        ("stepax.interop", "optx", INTEROP),
        ("stepax", "Rule", "stepax.rules.Rule"),
        ("stepax", "equality", "stepax.solve.constraints.equality"),
        ("stepax", "lazy", "stepax.contrib.lazy_rows"),
        ("stepax.contrib", "outer", "stepax.contrib.diloco"),
        ("stepax", "averaged_params", "stepax.eval_params"),
        ("stepax", "strict", "stepax.strict_keywords"),
        ("stepax", "Delta", "stepax.checkpoint.Delta"),
        ("stepax", "delta", "stepax.checkpoint.delta"),
        ("stepax", "apply_delta", "stepax.checkpoint.apply_delta"),
        ("stepax", "average_params", "stepax.averages"),
        ("stepax", "decay", "stepax.weight_decay"),
        ("stepax.transforms", "master_weights", "stepax.master_weights"),
        ("stepax.tree", "global_norm", "stepax.global_norm"),
    ],
)
def test_a_misspelt_name_brings_the_right_one(module, asked, suggested):
    with pytest.raises(AttributeError, match=f"did you mean.*`{suggested}`") as found:
        getattr(import_module(module), asked)
    start = f"module '{module}' has no attribute '{asked}'"
    assert str(found.value).startswith(start)


# The public names of these modules for which a suggestion can be right; no other name
# of them brings one.
ELSEWHERE = {
    "stepax, before the first release": {
        "LeastSquaresResult": "solve.Result", "Link": "distributed.audit",
        "MinimizeHistory": "solve.History",
        "MinimizeResult": "solve.Result", "MinimizeStatus": "solve.Status",
        "SolveHistory": "solve.History", "SolveResult": "solve.Result",
        "SolveStatus": "solve.Status", "Tolerances": "solve.Tolerances",
        "constraints": "solve.constraints", "fixed_point": "solve.fixed_point",
        "implicit": "solve.implicit", "least_squares": "solve.least_squares",
        "prox": "solve.prox", "quadratic_program": "solve.quadratic_program",
        "root": "solve.root",
    },
    "torch.optim": {
        "ASGD": "averages", "Adadelta": "adadelta", "Adafactor": "adafactor",
        "Adagrad": "adagrad", "Adam": "adam", "AdamW": "adamw", "Adamax": "adamax",
        "LBFGS": "lbfgs", "Muon": "contrib.muon", "NAdam": "nadam", "Optimizer": "",
        "RAdam": "radam", "RMSprop": "rmsprop", "Rprop": "rprop", "SGD": "sgd",
        "SparseAdam": "adam", "optim": "", "lr_scheduler": "schedules",
        "swa_utils": "",
    },
    "torch.optim.lr_scheduler": {
        "ChainedScheduler": "", "ConstantLR": "piecewise_constant_schedule",
        "CosineAnnealingLR": "cosine_decay_schedule",
        "CosineAnnealingWarmRestarts": "sgdr_schedule", "CyclicLR": "",
        "ExponentialLR": "exponential_decay", "LRScheduler": "schedules",
        "LambdaLR": "schedules", "LinearLR": "linear_schedule",
        "MultiStepLR": "piecewise_constant_schedule", "MultiplicativeLR": "schedules",
        "OneCycleLR": "cosine_onecycle_schedule", "PolynomialLR": "polynomial_schedule",
        "ReduceLROnPlateau": "contrib.reduce_on_plateau",
        "SequentialLR": "join_schedules", "StepLR": "exponential_decay",
    },
    "torch.optim.swa_utils, torch.amp, torch.nn.utils": {
        "AveragedModel": "averages", "SWALR": "cosine_decay_schedule",
        "get_ema_multi_avg_fn": "", "update_bn": "", "GradScaler": "dynamic_loss_scale",
        "autocast": "", "clip_grad_norm_": "clip_by_global_norm",
        "clip_grad_norm": "clip_by_global_norm", "clip_grad_value_": "clip",
        "clip_grads_with_norm_": "clip_by_global_norm", "get_total_norm": "tree.norm",
        "zero_grad": "", "parameters_to_vector": "", "skip_init": "",
        "spectral_norm": "", "weight_norm": "", "vector_to_parameters": "",
    },
    "torch.nn": {
        "BCELoss": "", "BCEWithLogitsLoss": "sigmoid_binary_cross_entropy",
        "CTCLoss": "ctc_loss",
        "CrossEntropyLoss": "softmax_cross_entropy_with_integer_labels",
        "HuberLoss": "huber_loss", "MSELoss": "squared_error", "NLLLoss": "",
        "SmoothL1Loss": "huber_loss", "TripletMarginLoss": "losses.triplet_margin_loss",
        "KLDivLoss": "kl_divergence", "L1Loss": "", "MarginRankingLoss": "",
        "MultiLabelMarginLoss": "", "SoftMarginLoss": "", "LinearCrossEntropyLoss": "",
        "MultiLabelSoftMarginLoss": "sigmoid_binary_cross_entropy",
        "MultiMarginLoss": "losses.multiclass_hinge_loss", "GaussianNLLLoss": "",
    },
    "torch.nn.functional": {
        "binary_cross_entropy": "", "kl_div": "kl_divergence", "l1_loss": "",
        "binary_cross_entropy_with_logits": "sigmoid_binary_cross_entropy",
        "cross_entropy": "softmax_cross_entropy_with_integer_labels",
        "softmax": "",
        "mse_loss": "squared_error", "nll_loss": "", "smooth_l1_loss": "huber_loss",
    },
    "scipy.optimize": {
        "OptimizeResult": "solve.Result",
        "NonlinearConstraint": "solve.constraints.equality",
        "LinearConstraint": "solve.constraints.equality", "anderson": "solve.root",
        "approx_fprime": "", "basinhopping": "", "bisect": "solve.root", "bracket": "",
        "brenth": "solve.root", "brentq": "solve.root", "broyden1": "solve.root",
        "broyden2": "solve.root", "brute": "", "check_grad": "",
        "curve_fit": "solve.least_squares", "differential_evolution": "", "direct": "",
        "dual_annealing": "", "fmin": "minimize", "fmin_bfgs": "minimize",
        "fmin_cg": "minimize", "fmin_cobyla": "minimize", "fmin_l_bfgs_b": "minimize",
        "fmin_ncg": "minimize", "fmin_powell": "minimize", "fmin_slsqp": "minimize",
        "fmin_tnc": "minimize", "fminbound": "minimize", "fsolve": "solve.root",
        "leastsq": "solve.least_squares", "line_search": "scale_by_zoom_linesearch",
        "linear_sum_assignment": "assignment.hungarian_algorithm",
        "linprog": "solve.quadratic_program", "lsq_linear": "solve.least_squares",
        "milp": "", "minimize_scalar": "minimize", "newton": "solve.root",
        "newton_krylov": "solve.root", "quadratic_assignment": "",
        "ridder": "solve.root", "root_scalar": "solve.root", "shgo": "",
        "toms748": "solve.root", "NoConvergence": "", "Bounds": "",
    },
    "jaxopt": {
        "AndersonAcceleration": "solve.fixed_point", "Bisection": "solve.root",
        "BoxCDQP": "solve.quadratic_program", "Broyden": "solve.root",
        "FixedPointIteration": "solve.fixed_point", "OptStep": "",
        "GaussNewton": "solve.least_squares", "GradientDescent": "minimize",
        "LBFGS": "lbfgs", "LevenbergMarquardt": "solve.least_squares",
        "OSQP": "solve.quadratic_program", "PolyakSGD": "polyak_sgd",
        "ProjectedGradient": "minimize", "ScipyMinimize": "minimize",
        "projection_polyhedron": "", "projection_transport": "",
        "prox_group_lasso": "solve.prox.group_l2", "prox_lasso": "solve.prox.l1",
        "prox_ridge": "solve.prox.l2_squared",
    },
    "keras.optimizers": {
        "AdamW": "adamw", "CosineDecay": "cosine_decay_schedule",
        "CosineDecayRestarts": "sgdr_schedule", "ExponentialDecay": "exponential_decay",
        "Ftrl": "", "LearningRateSchedule": "schedules", "Lion": "lion",
        "LossScaleOptimizer": "dynamic_loss_scale", "Nadam": "nadam",
        "PiecewiseConstantDecay": "piecewise_constant_schedule",
        "PolynomialDecay": "polynomial_schedule", "serialize": "to_config",
        "deserialize": "from_config",
    },
    "keras.losses, keras.callbacks": {
        "BinaryCrossentropy": "sigmoid_binary_cross_entropy", "Callback": "",
        "BinaryFocalCrossentropy": "sigmoid_focal_loss", "EarlyStopping": "",
        "CategoricalCrossentropy": "softmax_cross_entropy", "Poisson": "",
        "CategoricalHinge": "losses.multiclass_hinge_loss",
        "CosineSimilarity": "cosine_similarity", "Dice": "losses.dice_loss",
        "Hinge": "hinge_loss", "Huber": "huber_loss", "KLDivergence": "kl_divergence",
        "MeanAbsoluteError": "", "MeanSquaredError": "squared_error",
        "MeanSquaredLogarithmicError": "", "SquaredHinge": "",
        "SparseCategoricalCrossentropy": "softmax_cross_entropy_with_integer_labels",
    },
    "TensorFlow, Flax, bitsandbytes, and what it is called": {
        "AdamW8bit": "low_bit_states", "AdamWScheduleFree": "contrib."
        "schedule_free_adamw", "accumulate_gradients": "MultiSteps",
        "apply_gradients": "apply_updates", "clip_by_value": "clip",
        "clip_gradients": "clip_by_global_norm", "ema_params": "averages",
        "freeze_params": "freeze", "get_learning_rate": "hyperparams", "grad": "",
        "gradient_accumulation": "MultiSteps", "momentum": "sgd", "nesterov": "sgd",
        "noam": "schedules.warmup_inverse_sqrt_schedule", "polyak_average": "averages",
        "restore_checkpoint": "checkpoint.restore", "swa": "averages",
        "save_checkpoint": "checkpoint.save", "set_learning_rate": "inject_hyperparams",
    },
    "optax.tree_utils, and names of old": {
        f"tree_{x}": f"tree.{x}" for x in
        ("add", "cast", "max", "norm", "scale", "set", "size", "vdot", "zeros_like")
    },
}  # fmt: skip


@each(
    [
        pytest.param(name, own, id=f"{home}.{name}")
        for home, names in ELSEWHERE.items()
        for name, own in names.items()
    ]
)
def test_names_of_other_libraries_bring_the_right_one_or_none(name, own):
    with pytest.raises(AttributeError) as found:
        getattr(stepax, name)
    if name == "optim":
        assert str(found.value).endswith("; did you mean `stepax`?")
        return
    hint = f"; did you mean `stepax.{own}`?" if own else ""
    assert str(found.value) == f"module 'stepax' has no attribute '{name}'{hint}"


@each(
    [
        ("testing", "compare", "examples/compare"),
        ("testing", "Comparison", "examples/compare"),
        ("transfer", "coordinate_check", "examples/coordinates.py"),
        ("transfer", "Coordinates", "examples/coordinates.py"),
        ("metrics", "norm", "stepax.tree.norm"),
        ("distributed", "Link", "stepax.distributed.audit"),
    ]
)
def test_a_name_of_ours_that_left_its_module_brings_its_place(home, name, own):
    module = import_module(f"stepax.{home}")
    with pytest.raises(AttributeError, match=f"; did you mean `{own}`[?]$"):
        getattr(module, name)


def test_a_name_like_nothing_brings_no_suggestion():
    with pytest.raises(AttributeError) as found:
        getattr(stepax, "quxquux")  # noqa: B009 (type checkers know better)
    assert str(found.value) == "module 'stepax' has no attribute 'quxquux'"


@pytest.mark.slow
def test_asking_for_special_names_loads_nothing():
    program = (
        "import sys, stepax; before = set(sys.modules); "
        "assert not hasattr(stepax, '__wrapped__'); "
        "assert set(sys.modules) - before <= {'stepax._names', 'difflib'}"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
