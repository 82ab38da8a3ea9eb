"""Schedules: scalars, such as the learning rate, that depend on the step.

This module only lists names.  A schedule is a function of the step count, a Python
scalar or an array; its value has the shape of the count.  In the formulas `t` is the
count, `I`, `P` and `E` are the initial, peak and end value, and `T` is a number of
steps; any of them may be traced.
Float32 values are Optax's bit for bit, with these differences:

1. Arrays of counts and strict dtype promotion work everywhere.
2. A phase of 0 steps is skipped: a warm-up over 0 steps starts at the peak.
3. Linear phases end, and staircases change, at the exact step, even where compilers
   round divisions inaccurately.
4. Invalid arguments raise a ValueError: negative warm-ups, decay rates and factors,
phases out of order, boundaries that do not fit the schedules.
"""

from typing import TYPE_CHECKING

from ._engine.base import Schedule
from ._engine.factories.scheduled import StatefulSchedule, WrappedSchedule
from ._names import attributes
from ._schedules.basic import (
    constant_schedule,
    cosine_decay_schedule,
    exponential_decay,
    join_schedules,
    linear_schedule,
    polynomial_schedule,
)
from ._schedules.picture import plot
from ._schedules.piecewise import (
    cosine_onecycle_schedule,
    linear_onecycle_schedule,
    piecewise_constant_schedule,
    piecewise_interpolate_schedule,
)
from ._schedules.power_average import power_average_decay
from ._schedules.warmup import (
    sgdr_schedule,
    warmup_constant_schedule,
    warmup_cosine_decay_schedule,
    warmup_cosine_restarts_schedule,
    warmup_exponential_decay_schedule,
    warmup_inverse_sqrt_schedule,
    warmup_stable_decay_schedule,
)
from ._wrappers.inject import (
    InjectHyperparamsState,
    InjectStatefulHyperparamsState,
    inject_hyperparams,
    inject_stateful_hyperparams,
)


__all__ = [
    "InjectHyperparamsState", "InjectStatefulHyperparamsState", "Schedule",
    "StatefulSchedule", "WrappedSchedule", "constant_schedule", "cosine_decay_schedule",
    "cosine_onecycle_schedule", "exponential_decay", "inject_hyperparams",
    "inject_stateful_hyperparams", "join_schedules", "linear_onecycle_schedule",
    "linear_schedule", "piecewise_constant_schedule", "piecewise_interpolate_schedule",
    "plot", "polynomial_schedule", "power_average_decay", "sgdr_schedule",
    "warmup_constant_schedule", "warmup_cosine_decay_schedule",
    "warmup_cosine_restarts_schedule", "warmup_exponential_decay_schedule",
    "warmup_inverse_sqrt_schedule", "warmup_stable_decay_schedule",
]  # fmt: skip

if not TYPE_CHECKING:
    __dir__, __getattr__ = attributes(__name__)
