"""Hyperparameters that live in the state, where they can be read, changed, scheduled.

Which arguments of a factory are hyperparameters is decided by `_role` alone.
"""

import functools as ft
import inspect
import typing
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from . import select
from .numerics import safe_increment
from .precision import compute_dtype, real_dtype
from .protocol import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    Schedule,
    is_array,
    transformation,
    with_extra_args_support,
)
from .recipe import recipe
from .twin import twin


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


@twin
class WrappedScheduleState(NamedTuple):
    """count: steps taken, a scalar."""

    count: jax.Array


class WrappedSchedule:
    """A schedule of the step count in the form of a `StatefulSchedule`.

    schedule_fn: from the number of steps taken to a value.
    """

    def __init__(self, schedule_fn: Schedule):
        self.schedule_fn = schedule_fn

    def init(self) -> WrappedScheduleState:
        return WrappedScheduleState(jnp.zeros([], jnp.int32))

    def update(
        self, state: WrappedScheduleState, **extra_args: Any
    ) -> WrappedScheduleState:
        return WrappedScheduleState(safe_increment(state.count))

    def __call__(self, state: WrappedScheduleState, **extra_args: Any) -> ArrayLike:
        return self.schedule_fn(state.count)


@twin
class InjectHyperparamsState(NamedTuple):
    """The state before schedules could have their own; old programs name it."""

    count: jax.Array
    hyperparams: dict[str, jax.Array]
    inner_state: Any


@twin
class InjectStatefulHyperparamsState(NamedTuple):
    """State of `inject_hyperparams`.

    count: steps taken, a scalar.
    hyperparams: from names to the values that the last step used; those without a
        schedule may be replaced, and the next step uses the new value.
    hyperparams_states: from names of scheduled ones to the states of their schedules.
    inner_state: of the transformation that the factory makes.
    """

    count: jax.Array
    hyperparams: dict[str, jax.Array]
    hyperparams_states: dict[str, Any]
    inner_state: Any


def _members(hint: Any) -> list:
    """The members of a union, and of unions within it."""
    inner = typing.get_args(hint)
    if not inner or typing.get_origin(hint) in (Callable, type, dict, list, tuple):
        return [hint]
    return [x for part in inner for x in _members(part)]


_NUMBERS = (float, complex, np.number, np.floating, np.ndarray, jax.Array)


def _hints(factory: Callable) -> Mapping[str, list]:
    """What the factory says of its parameters; nothing, if that cannot be read."""
    try:
        parameters = inspect.signature(factory, eval_str=True).parameters
    except (NameError, TypeError, AttributeError):
        return {}  # names that exist for the type checker alone
    said = {k: p.annotation for k, p in parameters.items()}
    return {k: _members(x) for k, x in said.items() if x is not inspect.Parameter.empty}


def _takes_numbers(name: str, hint: list) -> bool:
    """Whether a parameter is for numbers, so that a function there is a schedule."""
    if not hint or Any in hint:
        return not any(word in name for word in ("mask", "label", "dtype", "_fn"))
    return any(x in _NUMBERS for x in hint)


def _role(name: str, x: Any, hint: list) -> str:
    """What an argument is: "number", "schedule", or "fixed"."""
    if isinstance(x, StatefulSchedule) and not isinstance(x, type):
        return "schedule"
    if isinstance(x, bool | np.bool_ | None) or not (is_array(x) or callable(x)):
        return "fixed"
    if callable(x):
        is_schedule = (
            not isinstance(x, type | np.dtype)
            and select.is_function(x)
            and _takes_numbers(name, hint)
        )
        return "schedule" if is_schedule else "fixed"
    if isinstance(x, int) and hint and not any(h in _NUMBERS for h in hint):
        return "fixed"
    return "number" if jnp.issubdtype(jnp.result_type(x), np.number) else "fixed"


def _sort(factory: Callable, static: set[str], arguments: Mapping[str, Any]) -> tuple:
    """The arguments that are numbers, and those that are schedules."""
    hints = _hints(factory)
    numbers, schedules = {}, {}
    for name, x in arguments.items():
        role = "fixed" if name in static else _role(name, x, hints.get(name, []))
        if role == "number":
            numbers[name] = x
        elif role == "schedule":
            is_stateful = isinstance(x, StatefulSchedule)
            schedules[name] = x if is_stateful else WrappedSchedule(x)
    return numbers, schedules


def _cast(x: Any, dtype: Any) -> jax.Array:
    """A hyperparameter as an array of its own, strongly typed; integers stay."""
    if jnp.issubdtype(jnp.result_type(x), jnp.integer):
        dtype = jnp.int32 if isinstance(x, int) else x.dtype
    return jnp.array(x, dtype)


def _static_names(factory: Callable, static_args: str | Iterable[str]) -> set[str]:
    names = {static_args} if isinstance(static_args, str) else set(static_args)
    known = inspect.signature(factory).parameters
    if names - set(known):
        raise ValueError(
            f"`static_args` names {sorted(names - set(known))}, but the parameters of "
            f"`{getattr(factory, '__name__', factory)}` are {list(known)}"
        )
    return names


@recipe
def _injected(
    inner_factory: Callable, static: tuple, dtype: Any, args: tuple, kwargs: dict
) -> GradientTransformationExtraArgs:
    bound = inspect.signature(inner_factory).bind(*args, **kwargs)
    bound.apply_defaults()
    numbers, schedules = _sort(inner_factory, set(static), bound.arguments)

    def make(values):
        arguments = OrderedDict(bound.arguments | values)
        call = inspect.BoundArguments(bound.signature, arguments)
        return with_extra_args_support(inner_factory(*call.args, **call.kwargs))

    def init(params):
        wide = dtype or _hyper_dtype(params)
        states = {k: s.init() for k, s in schedules.items()}
        values = {k: s(states[k]) for k, s in schedules.items()}
        values = {k: _cast(x, wide) for k, x in (numbers | values).items()}
        inner = make(values).init(params)
        count = jnp.zeros([], jnp.int32)
        return InjectStatefulHyperparamsState(count, values, states, inner)

    def update(updates, state, params=None, **extra_args):
        wide = dtype or _hyper_dtype(state.hyperparams)
        states = state.hyperparams_states
        values = {k: s(states[k], **extra_args) for k, s in schedules.items()}
        values = dict(state.hyperparams) | values
        values = {k: _cast(x, wide) for k, x in values.items()}
        tx = make(values)
        updates, inner = tx.update(updates, state.inner_state, params, **extra_args)
        states = {k: s.update(states[k], **extra_args) for k, s in schedules.items()}
        count = safe_increment(state.count)
        return updates, InjectStatefulHyperparamsState(count, values, states, inner)

    return transformation(init, update)


def _hyper_dtype(tree: Any) -> Any:
    """float32, or float64 where the arrays of `tree` are: never less than float32."""
    arrays = [x for x in jax.tree.leaves(tree) if is_array(x) and hasattr(x, "dtype")]
    return real_dtype(compute_dtype(*arrays))


def inject_hyperparams(
    inner_factory: Callable[..., GradientTransformation],
    static_args: str | Iterable[str] = (),
    hyperparam_dtype: DTypeLike | None = None,
) -> Callable[..., GradientTransformationExtraArgs]:
    """Keep the hyperparameters of a factory in the state, and run its schedules.

    Numbers are hyperparameters, and where the factory takes numbers, so are functions:
    they are schedules.  Booleans, dtypes, masks, labels, integers of a parameter that
    is annotated as one, and all else are passed to the factory as they are; a mask is
    never called here.

    To change a hyperparameter, write to `state.hyperparams`: nothing is compiled anew.
    One with a schedule follows its schedule.

    inner_factory: makes a transformation.
    static_args: names of further parameters that are no hyperparameters.
    hyperparam_dtype: of the hyperparameters; if `None`, float32, and float64 for
        parameters in float64.

    Raises a `ValueError` for a name in `static_args` that is no parameter.
    Returns a function with the parameters of `inner_factory`.
    """
    static = tuple(sorted(_static_names(inner_factory, static_args)))
    dtype = None if hyperparam_dtype is None else jnp.dtype(hyperparam_dtype)
    name = getattr(inner_factory, "__name__", repr(inner_factory))

    @ft.wraps(inner_factory)
    def make(*args: Any, **kwargs: Any) -> GradientTransformationExtraArgs:
        tx: Any = _injected(inner_factory, static, dtype, args, kwargs)
        shown = [*map(repr, args), *(f"{k}={x!r}" for k, x in kwargs.items())]
        title = f"inject_hyperparams({name})({', '.join(shown)})"
        tx.recipe = replace(tx.recipe, title=title)
        return tx

    return make


inject_stateful_hyperparams = inject_hyperparams
