"""Typical values of arguments by name, with which factories can be called.

Tests and the cards of the documentation call each factory with them.
"""

from collections.abc import Mapping


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
