"""Which numbers an argument may be, by its name; so that no factory checks for itself.

Python's and NumPy's numbers are checked where a factory is called.  Arrays of JAX are
not: they may be traced, and reading one would wait for the device.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any


@dataclass(frozen=True)
class Range:
    """An interval, without its upper end where that is said.

    hint: what to do instead, in the message.
    """

    least: float = -math.inf
    most: float = math.inf
    excludes_most: bool = False
    excludes_least: bool = False
    hint: str = ""

    def __contains__(self, x: Any) -> bool:
        above = x > self.least if self.excludes_least else x >= self.least
        return above and (x < self.most if self.excludes_most else x <= self.most)

    def __str__(self) -> str:
        if self.most == math.inf:
            return f"above {self.least}" if self.excludes_least else f">= {self.least}"
        left = "(" if self.excludes_least else "["
        right = ")" if self.excludes_most else "]"
        return f"in {left}{self.least}, {self.most}{right}"


ANY = Range()
AT_LEAST_0 = Range(0)
AT_LEAST_1 = Range(1)
POSITIVE = Range(0, excludes_least=True)
BELOW_1 = Range(0, 1, excludes_most=True)
UP_TO_1 = Range(0, 1)
RATE = Range(0, hint="; to ascend, change the sign of the gradients")

RANGES = {
    "adam_b1": BELOW_1,
    "adam_b2": BELOW_1,
    "adam_eps_root": AT_LEAST_0,
    "adam_learning_rate": RATE,
    "adam_weight_decay": AT_LEAST_0,
    "alpha": AT_LEAST_0,
    "b1": BELOW_1,
    "b2": BELOW_1,
    "b3": BELOW_1,
    "beta": BELOW_1,
    "betas": BELOW_1,
    "beta3": BELOW_1,
    "decay": BELOW_1,
    "decay_rate": UP_TO_1,
    "momentum": UP_TO_1,
    "rho": BELOW_1,
    "learning_rate": RATE,
    "max_learning_rate": RATE,
    "weight_decay": AT_LEAST_0,
    "weight_decay_rate": AT_LEAST_0,
    "eps": AT_LEAST_0,
    "eps_root": AT_LEAST_0,
    "epsilon": AT_LEAST_0,
    "estim_lr0": POSITIVE,
    "estim_lr_coef": POSITIVE,
    "eta": AT_LEAST_0,
    "eta_minus": Range(0, 1, excludes_least=True, excludes_most=True),
    "eta_plus": Range(1, excludes_least=True),
    "clip_threshold": POSITIVE,
    "clipping": AT_LEAST_0,
    "clipping_threshold": POSITIVE,
    "gamma": AT_LEAST_0,
    "init_estim_sq_dist": AT_LEAST_0,
    "initial_accumulator_value": AT_LEAST_0,
    "initial_scale": AT_LEAST_0,
    "k": AT_LEAST_1,
    "max_consecutive_errors": AT_LEAST_0,
    "max_delta": AT_LEAST_0,
    "max_norm": AT_LEAST_0,
    "max_step_size": AT_LEAST_0,
    "min_dim_size_to_factor": AT_LEAST_0,
    "min_norm": AT_LEAST_0,
    "min_scale": AT_LEAST_0,
    "min_step_size": AT_LEAST_0,
    "ns_steps": AT_LEAST_0,
    "num_betas": AT_LEAST_1,
    "reps_rel": POSITIVE,
    "s_init": POSITIVE,
    "slow_step_size": UP_TO_1,
    "threshold": AT_LEAST_0,
    "trust_coefficient": AT_LEAST_0,
    "update_interval": AT_LEAST_1,
    "warmup_steps": AT_LEAST_0,
    "weight_lr_power": AT_LEAST_0,
}


def check(name: str, arguments: Mapping[str, Any], own: Mapping[str, Range]) -> None:
    """Raise for the first number that is outside its range.

    own: the ranges in which the factory `name` differs from `RANGES`.
    """
    for key, given in arguments.items():
        allowed = own.get(key) or RANGES.get(key)
        if allowed is None:
            continue
        for x in given if isinstance(given, tuple | list) else (given,):
            if isinstance(x, Real) and not isinstance(x, bool) and x not in allowed:
                raise ValueError(
                    f"`{name}`: `{key}` must be {allowed}, but is {given}{allowed.hint}"
                )
