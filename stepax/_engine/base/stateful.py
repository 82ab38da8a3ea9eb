"""Schedules that have a state."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ..arrays.numerics import safe_increment
from .optax_types import optax_compatible
from .protocol import OptState, Schedule


@runtime_checkable
class StatefulSchedule(Protocol):
    """A schedule with a state, which sees the keywords of each update."""

    def init(self) -> OptState:
        """The first state."""
        ...

    def update(self, state: OptState, **extra_args: Any) -> OptState:
        """The state after a step."""
        ...

    def __call__(self, state: OptState, **extra_args: Any) -> ArrayLike:
        """The value for this step."""
        ...


@optax_compatible
class WrappedScheduleState(NamedTuple):
    """count: steps taken, a scalar."""

    count: jax.Array


class WrappedSchedule:
    """A schedule of the step count as a `StatefulSchedule`.

    schedule_fn: a function from the number of steps taken to a value.
    """

    def __init__(self, schedule_fn: Schedule):
        self.schedule_fn = schedule_fn

    def __repr__(self) -> str:
        return f"WrappedSchedule({self.schedule_fn!r})"

    def __eq__(self, other: object) -> bool:
        is_one = isinstance(other, WrappedSchedule)
        return is_one and self.schedule_fn == other.schedule_fn

    def __hash__(self) -> int:
        return hash((WrappedSchedule, self.schedule_fn))

    def init(self) -> WrappedScheduleState:
        return WrappedScheduleState(jnp.zeros([], jnp.int32))

    def update(
        self, state: WrappedScheduleState, **extra_args: object
    ) -> WrappedScheduleState:
        # Saturates: after 2^31 steps the schedule stays at its value.
        return WrappedScheduleState(safe_increment(state.count))

    def __call__(self, state: WrappedScheduleState, **extra_args: object) -> ArrayLike:
        return self.schedule_fn(state.count)
