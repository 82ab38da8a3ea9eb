"""Names of `stepax` that are loaded on first access, so that it is imported fast.

They are not in the registry of factories, which are all loaded eagerly.
"""

LATER = (
    "assignment", "checkpoint", "constraints", "contrib", "distributed",
    "experimental", "interop", "losses", "metrics", "microbatching", "perturbations",
    "projections", "prox", "rules", "second_order", "testing", "transfer",
)  # fmt: skip
_HOMES = {
    "_config.from_config": ("from_config",),
    "_config.to_config": ("to_config",),
    "_engine.inspect.describe": ("describe",),
    "_engine.inspect.hyperparams": ("hyperparams",),
    "_fused_scan": ("FusedScan", "fused_scan"),
    "_linear_algebra": ("matrix_inverse_pth_root", "nnls", "power_iteration"),
    "_minimize.driver": ("minimize",),
    "_minimize.result": ("MinimizeHistory", "MinimizeResult", "MinimizeStatus"),
    "_minimize.stop": ("Tolerances",),
    "_multi_normal": ("multi_normal",),
    "_scale_gradient": ("scale_gradient",),
    "_sweep.driver": ("sweep",),
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
}  # fmt: skip
NAMES_LATER = {name: home for home, names in _HOMES.items() for name in names}
# These warn, and come from `contrib`.
MOVED = (
    "DifferentiallyPrivateAggregateState",
    "differentially_private_aggregate",
    "dpsgd",
)
