"""Hyperparameters that are kept in the state, to be read, changed, or scheduled.

`factories/arguments.py` decides which arguments of a factory are hyperparameters.
"""

import functools as ft
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._engine import rules as rx
from .._engine.arrays.moments import is_number
from .._engine.arrays.numerics import safe_increment
from .._engine.base import is_array
from .._engine.factories.arguments import Arguments
from .._engine.factories.scheduled import StatefulSchedule, WrappedSchedule
from .._engine.functions.calls import nearest
from .._engine.functions.deprecated import warn_deprecated
from .._engine.functions.signatures import name_of, original


@rx.optax_compatible
class InjectHyperparamsState(rx.optax.InjectHyperparamsState):
    """An older state without states of schedules, for programs that refer to it."""

    count: jax.Array
    hyperparams: dict[str, jax.Array]
    inner_state: rx.OptState


@rx.optax_compatible
class InjectStatefulHyperparamsState(rx.optax.InjectStatefulHyperparamsState):
    """State of `inject_hyperparams`.

    count: steps taken, a scalar.
    hyperparams: a dict from names to the values that the last step used; values without
        a schedule may be replaced, and the next step uses the new value.
    hyperparams_states: a dict from the names of scheduled hyperparameters to the states
        of their schedules.
    inner_state: state of the transformation that the factory makes.
    """

    count: jax.Array
    hyperparams: dict[str, jax.Array]
    hyperparams_states: dict[str, rx.OptState]
    inner_state: rx.OptState


def _is_half(x: object) -> bool:
    is_array = isinstance(x, jax.Array | np.ndarray)
    return is_array and jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize < 4


def _read(
    state: rx.OptState, names: Iterable[str], known: Iterable[str]
) -> dict[str, Any]:
    """The hyperparameters in a state; an error names those that are not as expected."""
    fields = state._asdict() if rx.errors.fields_of(state) else {}
    found = fields.get("hyperparams")
    if not isinstance(found, Mapping) or "hyperparams_states" not in fields:
        raise ValueError(
            "`inject_hyperparams` expects a state `InjectStatefulHyperparamsState`, "
            f"but was given {rx.errors.describe(state)}; was this state made by "
            "another optimizer?"
        )
    for name in set(found) - set(known):
        raise ValueError(
            f"`{name}` in `state.hyperparams` is not one of the hyperparameters "
            f"{sorted(names)}{nearest(name, names, 0.4)}"
        )
    if missing := sorted(set(names) - set(found)):
        raise ValueError(
            f"`state.hyperparams` lacks {missing}; it has {sorted(found)}; was this "
            "state made by another optimizer?"
        )
    return dict(found)


def _narrowed(updates: rx.Updates, gradients: rx.Updates) -> rx.Updates:
    """Updates in the half precision of the gradients, which hyperparameters widened."""
    if jax.tree.structure(updates) != jax.tree.structure(gradients):
        return updates

    def one(u, g):
        return u.astype(g.dtype) if _is_half(g) and is_array(u) else u

    return jax.tree.map(one, updates, gradients)


@rx.recorded
def _injected(
    inner_factory: Callable,
    static: tuple,
    dtype: rx.DTypeLike | None,
    args: tuple,
    kwargs: dict,
) -> rx.GradientTransformationExtraArgs:
    call = Arguments(inner_factory, args, kwargs)
    # A state has the hyperparameters of Optax's state, unless others are given.
    numbers, functions = call.sort({*static, *call.unused_additions()})
    schedules: dict[str, Any] = {
        k: f if isinstance(f, StatefulSchedule) else WrappedSchedule(f)
        for k, f in functions.items()
    }
    names = [*numbers, *schedules]
    known = call.arguments()

    # An array in half precision keeps its dtype; a Python 0.999 must not become 1.
    narrow = {k: x.dtype for k, x in numbers.items() if not dtype and _is_half(x)}

    def cast(values, wide) -> dict[str, Any]:
        """Hyperparameters as new, strongly typed arrays."""

        def one(k, x):
            is_whole = jnp.issubdtype(jnp.result_type(x), jnp.integer)
            is_whole = is_whole and type(call.default(k)) is int
            return jnp.array(x, jnp.int32 if is_whole else narrow.get(k, wide))

        return {k: one(k, x) for k, x in values}

    def init(params):
        wide = dtype or rx.scalar_dtype(params)
        states = {k: s.init() for k, s in schedules.items()}
        found = call.read(numbers, {k: s(states[k]) for k, s in schedules.items()})
        # New arrays: a state that keeps one of them must not share its buffer.
        inner = call.again(cast(found.items(), wide)).init(params)
        count, values = jnp.zeros([], jnp.int32), cast(found.items(), wide)
        return InjectStatefulHyperparamsState(count, values, states, inner)

    def update(updates, state, params=None, **extra_args):
        wide = dtype or rx.scalar_dtype(updates if params is None else params)
        found, states = _read(state, names, known), state.hyperparams_states
        now = {k: s(states[k], **extra_args) for k, s in schedules.items()}
        found |= call.read({k: found[k] for k in numbers}, now)
        values = cast([(k, found[k]) for k in names], wide)
        tx = call.again(values)
        new, inner = tx.update(updates, state.inner_state, params, **extra_args)
        if not rx.node_of(tx).keeps_dtypes:
            new, old = _narrowed(new, rx.like_updates(updates, tx)), state.inner_state
            is_alike = jax.tree.structure(inner) == jax.tree.structure(old)
            inner = rx.keep_dtypes(inner, old) if is_alike else inner
        states = {k: s.update(states[k], **extra_args) for k, s in schedules.items()}
        count = safe_increment(state.count)
        return new, InjectStatefulHyperparamsState(count, found | values, states, inner)

    def members():
        # Arrays, as in `init`: for a number a factory may leave a part out.
        fixed = {k: np.asarray(x) if is_number(x) else x for k, x in numbers.items()}
        first = fixed | {k: s(s.init()) for k, s in schedules.items()}
        return {"inner_state": call.again(first)}

    sees_all = any(not isinstance(s, WrappedSchedule) for s in schedules.values())
    return rx.transformation(
        init, update, inner=members, hands_on="inner_state", reads_any=sees_all
    )


def _static_names(factory: Callable, static_args: str | Iterable[str]) -> set[str]:
    if not isinstance(static_args, Iterable):
        raise TypeError(
            f"`static_args` of `inject_hyperparams` is {static_args!r}, expected names;"
            " hyperparameters belong to a second call, as in "
            f"`inject_hyperparams({name_of(factory, 'adam')})({static_args!r})`"
        )
    names = {static_args} if isinstance(static_args, str) else set(static_args)
    known = inspect.signature(factory).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in known.values())
    if names - set(known) and not takes_any:
        raise ValueError(
            f"`static_args` names {sorted(names - set(known))}, but the parameters of "
            f"`{name_of(factory, repr(factory))}` are {list(known)}"
        )
    return names


@rx.explain_misuse
def inject_hyperparams(
    inner_factory: Callable[..., rx.TransformationLike],
    static_args: str | Iterable[str] = (),
    hyperparam_dtype: rx.DTypeLike | None = None,
) -> Callable[..., rx.GradientTransformationExtraArgs]:
    """Keep the hyperparameters of a factory in the state, and run its schedules.

    Scalars are hyperparameters; a function in place of a scalar is a schedule.  All
    other arguments reach the factory unchanged: booleans, dtypes, masks, labels, and
    integers for parameters annotated as `int`.  A mask is never called here.

    To change a hyperparameter, write to `state.hyperparams`: nothing is recompiled.  A
    hyperparameter with a schedule follows its schedule.

    inner_factory: makes a transformation.
    static_args: names of further parameters that are not hyperparameters.
    hyperparam_dtype: dtype of the hyperparameters.  If `None`, it is float32, or
        float64 for parameters in float64; a hyperparameter that is given as an array in
        half precision keeps that dtype.

    Raises a `ValueError` for a name in `static_args` that is not a parameter.
    Returns a function with the parameters of `inner_factory`.
    """
    if not callable(inner_factory):
        raise TypeError(
            f"`inner_factory` of `inject_hyperparams` is "
            f"{rx.errors.describe(inner_factory)}, expected a function that makes a "
            "transformation, as in `inject_hyperparams(adam)(learning_rate=1e-3)`"
        )
    factory = original(inner_factory)
    static = tuple(sorted(_static_names(factory, static_args)))
    dtype = None if hyperparam_dtype is None else jnp.dtype(hyperparam_dtype)
    name = name_of(inner_factory, repr(inner_factory))

    @ft.wraps(inner_factory)
    def make(*args: Any, **kwargs: Any) -> rx.GradientTransformationExtraArgs:
        # Sorted, so that calls are equal in whatever order their arguments are given.
        tx: Any = _injected(factory, static, dtype, args, dict(sorted(kwargs.items())))
        shown = [*map(repr, args), *(f"{k}={x!r}" for k, x in kwargs.items())]
        return rx.titled(tx, f"inject_hyperparams({name})({', '.join(shown)})")

    return make


@rx.explain_misuse
def inject_stateful_hyperparams(
    inner_factory: Callable[..., rx.TransformationLike],
    static_args: str | Iterable[str] = (),
    hyperparam_dtype: rx.DTypeLike | None = None,
) -> Callable[..., rx.GradientTransformationExtraArgs]:
    """The former name of `inject_hyperparams`.

    Arguments: those of `inject_hyperparams`.
    """
    warn_deprecated("inject_stateful_hyperparams")
    return inject_hyperparams(inner_factory, static_args, hyperparam_dtype)
