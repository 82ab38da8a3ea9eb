"""Typical arguments of each factory, with which tests and cards call it."""

import inspect
from collections.abc import Mapping
from typing import Any

# Cards import this file, too, without the folders that pytest adds to the path.
from stepax._engine.factories.registry import Row


# By name.
EXAMPLES: Mapping[str, object] = {
    "learning_rate": 1e-2,
    "step_size": 0.5,
    "factors": 0.5,
    "weight_decay": 1e-2,
    "decay": 0.9,
    "max_delta": 0.1,
    "threshold": 0.1,
    "max_norm": 0.1,
    "l2_norm_clip": 1.0,
    "noise_multiplier": 1.0,
    "clipping": 0.1,
    "eta": 0.01,
    "gamma": 0.55,
    "key": 0,
    "max_consecutive_errors": 2,
    "max_linesearch_steps": 5,
    "max_backtracking_steps": 5,
    "sync_period": 2,
    "slow_step_size": 0.5,
    "weight": 0.5,
    "measure_name": "norm",
    "reps_rel": 1e-6,
    "dtypes": {"mu": "float32"},
    "decays": {"fast": 0.9, "slow": 0.99},
}


def example(row: Row) -> dict[str, Any]:
    """Typical values of arguments without a default, and of positional ones.

    Functions and transformations are not included.
    """
    parameters = inspect.signature(row.factory).parameters
    return {
        k: EXAMPLES[k]
        for k, p in parameters.items()
        if k in EXAMPLES and (p.default is p.empty or _is_unused_by_position(p))
    }


def _is_unused_by_position(parameter: inspect.Parameter) -> bool:
    # A keyword argument is an option; Optax's `None` may mean a missing value.
    return parameter.default is None and parameter.kind is not parameter.KEYWORD_ONLY
