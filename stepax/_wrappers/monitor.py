"""Measurements of the updates, stored in the state.

Read them with `tree.get(state, name)`.  XLA does not compute measurements that a jitted
program does not return.

Difference from Optax: the structure and dtypes of the state are fixed by `init`, so
that it can be carried through `jax.lax.scan`.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.numerics import is_numeric
from .._transforms.mean import ema
from .._transforms.scale import stateless


@rx.optax_compatible
class SnapshotState(rx.optax.SnapshotState):
    """measurement: a dict from the name to the latest measurement."""

    measurement: dict[str, Any]


@rx.public()
def snapshot(
    measure_name: str, measure: Callable[[rx.Updates], Any]
) -> rx.GradientTransformation:
    """Measure the updates, and pass them on unchanged.

    measure_name: the name of the measurement in the state.
    measure: a function of the updates; `init` calls it on the parameters.
    """

    def init(params):
        found = measure(_trainable(params))
        return SnapshotState({measure_name: jax.tree.map(_own, found)})

    def update(updates, state, params=None, **extra_args):
        rx.errors.require_state("snapshot", SnapshotState, state)
        found = {measure_name: measure(updates)}
        return updates, SnapshotState(_settled(found, state.measurement))

    return rx.transformation(init, update)


def _trainable(params):
    return jax.tree.map(lambda p: p if rx.is_trainable(p) else None, params)


def _own(x):
    """A copy: a state that shares arrays with the parameters cannot be donated."""
    return rx.START.new(x) if rx.is_array(x) and is_numeric(x) else x


def _settled(new, old):
    """Measurements in the dtypes of the previous ones, so that the state is stable."""

    def settle(name, x):
        was = old.get(name)
        is_alike = jax.tree.structure(x) == jax.tree.structure(was)
        return rx.keep_dtypes(x, was) if is_alike else x

    return {name: settle(name, x) for name, x in new.items()}


@rx.optax_compatible
class MonitorState(rx.optax.MonitorState):
    """measurements: dict from names to the latest measurements, zeros before any step.
    measure_states: states of the measuring transformations, in the order of names."""

    measurements: dict[str, Any]
    measure_states: tuple


@rx.public()
def monitor(
    measures: Mapping[str, rx.TransformationLike | Callable[[rx.Updates], Any]],
) -> rx.GradientTransformationExtraArgs:
    """Measure the updates in several ways, and pass them on unchanged.

    measures: a dict from names to functions of the updates, or to transformations,
        which receive the updates, parameters and keywords of `update` and whose updates
        are the measurement.  See `measure_with_ema`.
    """
    members = {name: _measuring(x, name) for name, x in measures.items()}
    places = {f"measure_states/{i}": tx for i, tx in enumerate(members.values())}

    def init(params):
        states, known = [], {}
        for name, tx in members.items():
            states.append(tx.init(params))
            known |= _blank(name, tx, states[-1], params)
        return MonitorState(known, tuple(states))

    def update(updates, state, params=None, **extra_args):
        rx.errors.require_state("monitor", MonitorState, state)
        found, states = {}, []
        pairs = zip(members.items(), state.measure_states, strict=True)
        for (name, tx), s in pairs:
            found[name], s = tx.update(updates, s, params, **extra_args)
            states.append(s)
        return updates, MonitorState(_settled(found, state.measurements), tuple(states))

    return rx.transformation(init, update, inner=places)


def _measuring(
    x: rx.TransformationLike | Callable, name: str
) -> rx.GradientTransformationExtraArgs:
    if callable(x) and not rx.is_transformation(x):
        return rx.with_extra_args_support(stateless(lambda updates, params: x(updates)))
    return rx.with_keywords(x, f"`{name}` in `measures`")


def _blank(name, tx, state, params):
    """Zeros like the measurement; empty if its shape is unknown before a step."""

    def measurement():
        return tx.update(jax.tree.map(rx.zeros_like, params), state, params)[0]

    try:
        found = jax.eval_shape(measurement)
    except Exception:
        # It may need keywords or concrete values.  `update` raises any other error
        # again.
        return {}
    return {name: jax.tree.map(rx.zeros_like, found)}


class Observation(NamedTuple):
    """The inputs and outputs of a step of the observed transformation.

    before, after: the updates that the transformation received and returned.
    params: the parameters, or `None`.
    old, new: its state before and after.
    keywords: those of `update`.
    """

    before: rx.Updates
    after: rx.Updates
    params: rx.Params | None
    old: rx.OptState
    new: rx.OptState
    keywords: Mapping[str, Any]


@dataclass(frozen=True)
class StatefulMetric:
    """A metric with a memory, for `observe`.

    init: a function from the parameters to the first value and the first memory, trees
        of arrays.
    measure: a function from the memory and an `Observation` to the value and the next
        memory, of the same shapes.
    reads: names of the keywords of `update` that it reads, for `strict_keywords`.
    """

    init: Callable[[rx.Params], tuple[Any, Any]]
    measure: Callable[[Any, Observation], tuple[Any, Any]]
    reads: tuple[str, ...] = ()


Metric: TypeAlias = Callable[[rx.Updates, rx.Updates, rx.Params], Any] | StatefulMetric


class ObserveState(NamedTuple):
    """metrics: dict from names to the latest values, zeros before the first step.
    inner_state: state of the inner transformation.
    memory: the memories of the stateful metrics, in their order."""

    metrics: dict[str, Any]
    inner_state: rx.OptState
    memory: tuple = ()


@rx.public("wrapper")
def observe(
    inner: rx.TransformationLike, metrics: Mapping[str, Metric]
) -> rx.GradientTransformationExtraArgs:
    """Measure the updates before and after a transformation.

        u = inner(g),   metrics[name] = f(g, u, params)   for each name and f

    The structure of the state is fixed by `init`.  The updates are those of the inner
    transformation.  `stepax.metrics` has common metrics.

    inner: the transformation.
    metrics: a dict from names to functions of the updates before, the updates after and
        the parameters, which are `None` if `update` is called without them; they return
        arrays, or trees of arrays, of the same shapes at each step.  A
        `stepax.metrics.StatefulMetric` has a memory as well.

    Raises a `TypeError` for a metric that is not a function.
    """
    inner = rx.with_keywords(inner, "`inner` of `observe`")
    for name, f in metrics.items():
        if not callable(f) and not isinstance(f, StatefulMetric):
            raise TypeError(
                f"the metric `{name}` of `observe` must be a function of updates "
                f"before, updates after and parameters, but is a `{type(f).__name__}`"
            )
    plain = {k: f for k, f in metrics.items() if not isinstance(f, StatefulMetric)}
    stateful = {k: f for k, f in metrics.items() if isinstance(f, StatefulMetric)}

    def measure(before, after, params):
        return {
            name: jax.tree.map(jnp.asarray, f(before, after, params))
            for name, f in plain.items()
        }

    def init(params):
        like = jax.tree.map(rx.zeros_like, params)
        found = jax.eval_shape(lambda: measure(like, like, params))
        found = jax.tree.map(rx.zeros_like, found)
        first = {name: f.init(params) for name, f in stateful.items()}
        found |= {name: value for name, (value, _) in first.items()}
        memory = tuple(kept for _, kept in first.values())
        return ObserveState(found, inner.init(params), memory)

    def update(updates, state, params=None, **extra_args):
        rx.errors.require_state("observe", ObserveState, state)
        after, new = inner.update(updates, state.inner_state, params, **extra_args)
        found = measure(updates, after, params)
        seen = Observation(updates, after, params, state.inner_state, new, extra_args)
        memory = []
        for (name, f), old in zip(stateful.items(), state.memory, strict=True):
            found[name], kept = f.measure(old, seen)
            memory.append(rx.keep_dtypes(kept, old))
        found = _settled(found, state.metrics)
        return after, ObserveState(found, new, tuple(memory))

    declare_keywords(update, {name for f in stateful.values() for name in f.reads})
    members = {"inner_state": inner}
    return rx.transformation(init, update, inner=members, hands_on="inner_state")


def declare_keywords(update: Callable, names: Iterable[str]) -> None:
    """Put keywords into the signature of `update`, which tells what it reads."""
    old = inspect.signature(update)
    *first, rest = old.parameters.values()
    kind = inspect.Parameter.KEYWORD_ONLY
    new = [inspect.Parameter(name, kind, default=None) for name in sorted(names)]
    vars(update)["__signature__"] = old.replace(parameters=[*first, *new, rest])


# Not in the registry: it returns a measurement rather than an update.
@rx.recorded
def measure_with_ema(
    measure: Callable[[rx.Updates], Any],
    decay: rx.ArrayLike,
    debias: bool = True,
    accumulator_dtype: rx.DTypeLike | None = None,
) -> rx.GradientTransformationExtraArgs:
    """The exponential moving average (EMA) of a measurement, for `monitor`.

        mean = decay mean + (1 - decay) measure(g)
        u = mean / (1 - decay^t)   if debias, otherwise mean

    measure: a function from the updates to arrays; `init` calls it on the parameters.
        Booleans and integers are averaged in floating point.
    decay: decay rate, in [0, 1).
    debias: whether to correct the bias from initialization at zero.
    accumulator_dtype: storage dtype of the EMA; that of the measurement if `None`.
    """
    mean = ema(decay, debias, accumulator_dtype)

    def init(params):
        return rx.EmptyState(), mean.init(
            jax.tree.map(_floating, measure(_trainable(params)))
        )

    def update(updates, state, params=None, **extra_args):
        rx.errors.require_states("`measure_with_ema`, which has two,", 2, state)
        nothing, state = state
        found = jax.tree.map(_floating, measure(updates))
        averaged, state = mean.update(found, state)
        return averaged, (nothing, state)

    return rx.transformation(init, update)


def _floating(x):
    x = jnp.asarray(x)
    is_floating = jnp.issubdtype(x.dtype, jnp.inexact)
    return x.astype(x.dtype if is_floating else jnp.result_type(float))
