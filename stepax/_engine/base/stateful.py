"""Schedules that remember more than the number of steps."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ..arrays.numerics import safe_increment
from .optax_types import optax_compatible
from .protocol import Schedule


@runtime_checkable
class StatefulSchedule(Protocol):
    """A schedule that remembers: it sees the keywords of each update."""

    def init(self) -> Any:
        """The first state."""
        ...

    def update(self, state: Any, **extra_args: Any) -> Any:
        """The state after a step."""
        ...

    def __call__(self, state: Any, **extra_args: Any) -> ArrayLike:
        """The value for this step."""
        ...


@optax_compatible
class WrappedScheduleState(NamedTuple):
    """count: steps taken, a scalar."""

    count: jax.Array


class WrappedSchedule:
    """A schedule of the step count in the form of a `StatefulSchedule`.

    schedule_fn: from the number of steps taken to a value.
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
        self, state: WrappedScheduleState, **extra_args: Any
    ) -> WrappedScheduleState:
        return WrappedScheduleState(safe_increment(state.count))

    def __call__(self, state: WrappedScheduleState, **extra_args: Any) -> ArrayLike:
        return self.schedule_fn(state.count)
