"""Names of `stepax` that are loaded on first access, so that it is imported fast."""

LATER = (
    "assignment", "checkpoint", "contrib", "distributed", "experimental", "interop",
    "metrics", "perturbations", "projections", "second_order", "testing",
    "transfer",
)  # fmt: skip
NAMES_LATER = {
    "Constraint": "_minimize.constraints",
    "MinimizeHistory": "_minimize.result",
    "MinimizeResult": "_minimize.result",
    "MinimizeStatus": "_minimize.result",
    "SweepResult": "_sweep.result",
    "Tolerances": "_minimize.stop",
    "describe": "_engine.inspect.describe",
    "equality": "_minimize.constraints",
    "FusedScan": "_fused_scan",
    "from_config": "_config.from_config",
    "fused_scan": "_fused_scan",
    "hyperparams": "_engine.inspect.hyperparams",
    "inequality": "_minimize.constraints",
    "minimize": "_minimize.driver",
    "sweep": "_sweep.driver",
    "to_config": "_config.to_config",
}
# They warn, and come from `contrib`.
MOVED = (
    "DifferentiallyPrivateAggregateState",
    "differentially_private_aggregate",
    "dpsgd",
)
