"""Schedules that know the call that made them, and schedules that have a state."""

import functools as ft
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, ParamSpec, Protocol, cast, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ..arrays.numerics import dtype_of, safe_increment
from ..base import OptState, Schedule, optax_compatible
from ..base.call import Call, known_by_call
from ..functions import calls, signatures
from ..functions.calls import copy_containers
from ..trees import errors


P = ParamSpec("P")

# The factories of schedules and of metrics, by name.
SCHEDULES: dict[str, Callable] = {}
METRICS: dict[str, Callable] = {}


@known_by_call
class MadeFunction:
    """A function that is compared, printed and pickled as the call that made it."""

    # No `__dict__`: `functools.wraps` would copy it to functions around this one,
    # which were not made by its call.
    __slots__ = ("__weakref__", "function", "call")

    def __init__(self, function: Callable, call: Call):
        self.function = function
        self.call = call

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)

    @property
    def __name__(self) -> str:
        return self.call.name


class MadeSchedule(MadeFunction):
    """A function of the step count, and the call that made it."""

    __slots__ = ()

    def __call__(self, count: ArrayLike) -> ArrayLike:
        return self.function(_widened(count))

    def __getattr__(self, name: str) -> Any:
        hint = f"a schedule has no `{name}`: its value is that of `schedule(count)`"
        raise AttributeError(name if name.startswith("_") else hint)

    def refuse(self) -> None:
        """Raise the error for a schedule that is used like a number."""
        raise TypeError(f"{self} is a schedule, no number: call it with the step count")

    # What Python calls it in errors, such as that for a missing count.
    __call__.__qualname__ = "schedule"

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments that it was made with, including defaults."""
        return copy_containers(dict(self.call.bound.arguments))


calls.refuse_operators(MadeSchedule)


def _widened(count: Any) -> Any:
    """An unsigned or narrow count as int32, which holds differences from boundaries."""
    dtype = jnp.dtype(dtype_of(count, np.int32))
    if not jnp.issubdtype(dtype, jnp.integer) or dtype in (np.int32, np.int64):
        return count
    count = jnp.asarray(count).astype(jnp.int32)
    return jnp.where(count < 0, jnp.iinfo(jnp.int32).max, count)


def scheduled(factory: Callable[P, Any]) -> Callable[P, Schedule]:
    """Let the schedules that `factory` makes be printed, compared and pickled."""

    # The product of two numbers instead of schedules is a number.
    def made(function, call):
        return MadeSchedule(function, call) if callable(function) else function

    return known(factory, made, SCHEDULES)


def known(factory: Callable[P, Any], kind: Callable, table: dict) -> Callable[P, Any]:
    """Let what a factory makes be printed, compared and pickled as the call.

    kind: makes the result of what `factory` returns and of the call.
    table: where the factory is entered, by name.
    """
    name, signature = factory.__qualname__, signatures.signature(factory)
    counts = [k for k, p in signature.parameters.items() if p.annotation is int]

    @ft.wraps(factory)
    def make(*args: P.args, **kwargs: P.kwargs) -> Any:
        taken = tuple(_kept(x) for x in args)
        named = {k: _kept(x) for k, x in kwargs.items()}
        bound = calls.bind(factory, name, signature, taken, named)
        with errors.named(name, f=factory, given=bound.arguments):
            for k in counts:
                _check_count(k, bound)
            function = cast(Callable, factory)(*taken, **named)
        # Made by a factory that this one calls; the outer call is recorded.
        if isinstance(function, MadeFunction):
            function = function.function
        return kind(function, Call(make, factory, bound))

    # `inspect.getfullargspec` unwraps nothing.
    vars(make)["__signature__"] = signature
    table[factory.__name__] = make
    return make


# No learning rate is as large, and many numbers of steps are.
_LIKE_A_COUNT = 100


def _check_count(name: str, bound: inspect.BoundArguments) -> None:
    """Raise for a part of a step beside a value like a count: the order is wrong."""
    x = bound.arguments[name]
    kinds = {k: p.annotation for k, p in bound.signature.parameters.items()}
    others = {k: y for k, y in bound.arguments.items() if kinds[k] not in (int, float)}
    values = [float(y) for y in others.values() if isinstance(y, int | float)]
    if is_part_of_step(x) and max(values, default=0) >= _LIKE_A_COUNT:
        raise errors.of_step(
            f"`{name}` is {x}, expected a number of steps; the arguments are "
            f"({', '.join(bound.signature.parameters)}): were two of them swapped?"
        )


def is_part_of_step(x: object) -> bool:
    """Whether a number of steps is between 0 and 1."""
    return isinstance(x, float) and 0 < x < 1


def _kept(x: object) -> Any:
    # An iterator can be read only once: by the call, but not made again.
    return copy_containers(list(x) if isinstance(x, Iterator) else x)


def values_of(schedule: Schedule, counts: Any) -> np.ndarray:
    """The values of a schedule after these numbers of steps, in double precision."""
    # The values are known even while something else is traced.
    with jax.ensure_compile_time_eval():
        try:
            at = jnp.asarray(counts, jnp.int32)
            return np.asarray(jax.vmap(lambda t: jnp.asarray(schedule(t)))(at), float)
        except Exception:  # it branches on the count, or is not of JAX
            return np.asarray([np.asarray(schedule(int(t))) for t in counts], float)


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


@dataclass(frozen=True)
class WrappedSchedule:
    """A schedule of the step count as a `StatefulSchedule`.

    schedule_fn: a function from the number of steps taken to a value.
    """

    schedule_fn: Schedule

    def __repr__(self) -> str:
        return f"WrappedSchedule({self.schedule_fn!r})"

    def init(self) -> WrappedScheduleState:
        return WrappedScheduleState(jnp.zeros([], jnp.int32))

    def update(
        self, state: WrappedScheduleState, **extra_args: object
    ) -> WrappedScheduleState:
        # Saturates: after 2^31 steps the schedule stays at its value.
        return WrappedScheduleState(safe_increment(state.count))

    def __call__(self, state: WrappedScheduleState, **extra_args: object) -> ArrayLike:
        return self.schedule_fn(state.count)
