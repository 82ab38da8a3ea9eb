"""Random arguments for every factory, by the names of its parameters."""

import inspect
from typing import Any

import optax
import optax.contrib
from hypothesis import strategies as st
from inside import ROWS, Row

import stepax.contrib  # noqa: F401  (its factories are in the registry then)
from fuzz.trees import trees_of


FLAG = ["True", "False"]
DECAY = ["0.9", "0.5", "0.99"]
SMALL = ["1e-8", "1e-3", "0.1"]
SCHEDULES = [
    "o.linear_schedule(0.1, 0.01, 3)",
    "o.cosine_decay_schedule(0.1, 4)",
    "o.piecewise_constant_schedule(0.1, {2: 0.5})",
    "o.warmup_constant_schedule(0.0, 0.1, 2)",
    "o.exponential_decay(0.1, 2, 0.5, staircase=True)",
    "o.join_schedules([lambda t: 0.1, lambda t: 0.01], [3])",
    "falling",
]
RATES = ["0.1", "0.01", "1.0"]
DTYPE = ["'bfloat16'", "'float32'", "'float64'"]
WEIGHTS = ["0.0", "0.1", "falling"]

VALUES: dict[str, list[str]] = {
    "accumulation_size": ["1", "2"],
    "accumulator_dtype": DTYPE,
    "adam_b1": DECAY,
    "adam_b2": DECAY,
    "adam_eps_root": SMALL,
    "adam_learning_rate": RATES,
    "adam_weight_decay": ["0.1"],
    "adapt_lower_bound": FLAG,
    "adaptive": FLAG,
    "alpha": ["0.5", "2.0"],
    "atol": ["0.0", "0.1"],
    "axis": ["0", "None"],
    "b1": DECAY,
    "b2": DECAY,
    "b3": DECAY,
    "beta": DECAY,
    "beta3": DECAY,
    "betas": ["(0.9, 0.99)", "(0.5, 0.9)"],
    "bias_correction": FLAG,
    "bias_correction_mu": FLAG,
    "bias_correction_nu": FLAG,
    "centered": FLAG,
    "clip_threshold": ["0.5", "None"],
    "clipping": ["0.01", "0.5"],
    "clipping_threshold": ["0.5", "None"],
    "consistent_rms": ["None", "0.2"],
    "cooldown": ["0", "1"],
    "debias": FLAG,
    "decay": DECAY,
    "decay_offset": ["0", "-2"],
    "decay_rate": ["0.8", "0.5"],
    "decrease_factor": ["0.8", "0.5"],
    "dtype_momentum": DTYPE,
    "eps": SMALL,
    "eps_in_sqrt": FLAG,
    "eps_root": ["0.0", "1e-3"],
    "epsilon": ["1e-30", "1e-3"],
    "estim_lr0": ["1e-6", "0.01"],
    "estim_lr_coef": ["1.0", "0.5"],
    "eta": ["0.01", "0.3"],
    "eta_minus": ["0.5", "0.9"],
    "eta_plus": ["1.2", "2.0"],
    "f_min": ["0.0", "0.5"],
    "factor": ["0.1", "0.5"],
    "factored": FLAG,
    "flip_sign": FLAG,
    "gamma": ["0.55", "0.1"],
    "global_scale": ["1.0", "0.5"],
    "hessian_diagonal_fn": ["o.contrib.hutchinson_estimator_diag_hessian(0)"],
    "increase_factor": ["1.5", "2.0"],
    "init_estim_sq_dist": ["None", "0.1"],
    "init_step": ["('heuristic', 1e-2)", "('learning_rate', 0.1)"],
    "initial_accumulator_value": ["0.0", "0.1"],
    "initial_scale": ["0.0", "1.0"],
    "k": ["1", "2", "3"],
    "key": ["0", "3", "jax.random.key(1)"],
    "learning_rate": RATES + SCHEDULES,
    "linesearch": [
        "None",
        "o.scale_by_backtracking_linesearch(3)",
        "o.scale_by_zoom_linesearch(4)",
    ],
    "lower_bound": ["0.0", "0.5"],
    "max_backtracking_steps": ["1", "4"],
    "max_delta": ["0.1", "1.0"],
    "max_learning_rate": ["1.0", "0.1"],
    "max_linesearch_steps": ["1", "4"],
    "max_norm": ["0.1", "10.0"],
    "max_step_size": ["50.0", "0.3"],
    "memory_size": ["1", "3"],
    "min_dim_size_to_factor": ["2", "128"],
    "min_norm": ["0.0", "1e-3"],
    "min_scale": ["0.001", "0.5"],
    "min_step_size": ["1e-6", "0.05"],
    "mode": ["'hard'", "'smooth'", "'refined'"],
    "momentum": ["0.9", "0.5"],
    "mu_dtype": DTYPE,
    "multiply_by_parameter_scale": FLAG,
    "nesterov": FLAG,
    "ns_steps": ["1", "5"],
    "optimism": ["None", "0.3"],
    "param_dtype": ["'float32'", "'float64'"],
    "patience": ["1", "2"],
    "preconditioning": ["'frobenius'", "'spectral'", "'aol'", "'schatten'"],
    "rank": ["1", "2", "128"],
    "reps_rel": ["1e-6", "0.1"],
    "rho": DECAY,
    "rtol": ["0.0", "0.1"],
    "safeguard_warmup": FLAG,
    "scale": ["1.0", "0.5"],
    "scale_factor": ["1.0", "2.0"],
    "scale_init_precond": FLAG,
    "scaling": ["1.0", "0.1", "falling"],
    "slope_rtol": ["1e-4", "0.1"],
    "smooth_beta": ["1.0", "3.0"],
    "state_dtype": DTYPE,
    "step_offset": ["0", "-2"],
    "step_size": ["0.5", "-1.0"],
    "step_size_fn": SCHEDULES,
    "store_grad": FLAG,
    "threshold": ["0.1", "5.0"],
    "trust_coefficient": ["0.001", "0.5"],
    "update_interval": ["1", "2"],
    "update_proj_gap": ["1", "2", "200"],
    "use_clipping": FLAG,
    "variant": ["'sps'", "'sps+'"],
    "warmup_steps": ["None", "2"],
    "weight_decay": WEIGHTS,
    "weight_decay_rate": ["None", *WEIGHTS],
    "weight_lr_power": ["2.0", "0.0", "1.0"],
}
# Not drawn: they print, take functions, or are about meshes.
LEFT_OUT = {
    "clip_value_fn",
    "decay_rate_fn",
    "ns_coeffs",
    "print_win_rate_every_n_steps",
    "seed",
    "tol",
    "curv_rtol",
    "approx_dec_rtol",
    "stepsize_precision",
    "initial_guess_strategy",
    "verbose",
    "muon_weight_dimension_numbers",
    "weight_dimension_numbers",
    "base_optimizer",
}
MASKS = {"mask", "weight_decay_mask", "trust_ratio_mask", "freeze_mask"}


def home(name: str) -> str:
    return "o" if hasattr(optax, name) else "o.contrib"


def theirs(row: Row) -> Any:
    return getattr(optax, row.name, None) or getattr(optax.contrib, row.name)


def masks(spec: Any) -> st.SearchStrategy[str]:
    """Every form of mask that both libraries take."""
    whole = ["is_matrix", "lambda p: jax.tree.map(lambda x: True, p)", *FLAG]
    return st.one_of(st.sampled_from(whole), trees_of(spec, FLAG))


def value(name: str, spec: Any) -> st.SearchStrategy[str]:
    return masks(spec) if name in MASKS else st.sampled_from(VALUES[name])


@st.composite
def calls(draw: st.DrawFn, row: Row, spec: Any) -> str:
    """A call of a factory, with all it needs and at most two options."""
    parameters = list(inspect.signature(theirs(row)).parameters.values())
    needed = [p.name for p in parameters if p.default is p.empty]
    needed += [p for p in ("key", "hessian_diagonal_fn") if p in map(str, parameters)]
    options = [p.name for p in parameters if p.name not in {*needed, *LEFT_OUT}]
    chosen = (
        draw(st.lists(st.sampled_from(options), max_size=2, unique=True))
        if (options)
        else []
    )
    names = needed + chosen
    return (
        f"{home(row.name)}.{row.name}("
        + ", ".join(f"{name}={draw(value(name, spec))}" for name in names)
        + ")"
    )


SPECIAL = {"monitor", "snapshot", "stateless", "stateless_with_tree_map", "freeze"}
FACTORIES = [
    row
    for _, row in sorted(ROWS.items())  # whatever was imported first
    if row.kind in ("optimizer", "transform")
    and (hasattr(optax, row.name) or hasattr(optax.contrib, row.name))
    and row.name not in SPECIAL
]
