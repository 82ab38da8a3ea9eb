"""Measurements of the updates, kept in the state.

They are read with `tree.get(state, name)`.  What a jitted program does not return, XLA
does not compute.

Difference from Optax: the state has its final structure and dtypes from `init` on, so
that it can be carried through `jax.lax.scan`.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from .._engine.arrays.numerics import is_numeric
from .._engine.base.optax_types import optax_compatible
from .._engine.base.protocol import (
    EmptyState,
    GradientTransformation,
    GradientTransformationExtraArgs,
    OptState,
    Params,
    Updates,
    is_array,
    require_transformation,
    transformation,
    with_extra_args_support,
)
from .._engine.factories.recipe import recipe
from .._engine.factories.registry import public
from .._engine.step.rule import is_trainable, zeros_like
from .._engine.trees import errors
from .._transforms.mean import ema
from .._transforms.stateless import stateless


@optax_compatible
class SnapshotState(NamedTuple):
    """measurement: from the one name to what was measured last."""

    measurement: dict[str, Any]


@public()
def snapshot(
    measure_name: str, measure: Callable[[Updates], Any]
) -> GradientTransformation:
    """Measure the updates, and pass them on unchanged.

    measure_name: the name of the measurement in the state.
    measure: a function of the updates; `init` calls it on the parameters.
    """

    def init(params):
        found = measure(_trainable(params))
        return SnapshotState({measure_name: jax.tree.map(_own, found)})

    def update(updates, state, params=None, **extra_args):
        errors.require_state("snapshot", SnapshotState, state)
        found = {measure_name: measure(updates)}
        return updates, SnapshotState(_settled(found, state.measurement))

    return transformation(init, update)


def _trainable(params):
    """Parameters as gradients have them, with `None` for functions and the like."""
    return jax.tree.map(lambda p: p if is_trainable(p) else None, params)


def _own(x):
    """A copy: a state must not share arrays with the parameters, to be donated."""
    if not is_array(x) or not is_numeric(x):
        return x
    x = jnp.array(x)
    return x.astype(x.dtype)


def _settled(new, old):
    """Measurements in the dtypes of those before, so that the state stays the same."""

    def one(x, was):
        if not is_array(x) or not is_array(was) or not is_numeric(was):
            return x
        return jax.lax.convert_element_type(x, jnp.result_type(was))

    def settle(name, x):
        was = old.get(name)
        is_alike = jax.tree.structure(x) == jax.tree.structure(was)
        return jax.tree.map(one, x, was) if is_alike else x

    return {name: settle(name, x) for name, x in new.items()}


@optax_compatible
class MonitorState(NamedTuple):
    """measurements: from names to what was measured last, zeros before the first step.
    measure_states: of the transformations that measure, in the order of the names."""

    measurements: dict[str, Any]
    measure_states: tuple


@public()
def monitor(
    measures: dict[str, GradientTransformationExtraArgs | Callable[[Updates], Any]],
) -> GradientTransformationExtraArgs:
    """Measure the updates in several ways, and pass them on unchanged.

    measures: from names to functions of the updates, or to transformations, which are
        given the updates, and the parameters and keywords of `update`; what they return
        is the measurement.  See `measure_with_ema`.
    """
    members = {name: _measuring(x, name) for name, x in measures.items()}

    def init(params):
        states, known = [], {}
        for name, tx in members.items():
            states.append(tx.init(params))
            known |= _blank(name, tx, states[-1], params)
        return MonitorState(known, tuple(states))

    def update(updates, state, params=None, **extra_args):
        errors.require_state("monitor", MonitorState, state)
        found, states = {}, []
        pairs = zip(members.items(), state.measure_states, strict=True)
        for (name, tx), s in pairs:
            found[name], s = tx.update(updates, s, params, **extra_args)
            states.append(s)
        return updates, MonitorState(_settled(found, state.measurements), tuple(states))

    return transformation(init, update, inner=tuple(members.values()))


def _measuring(x: Any, name: str) -> GradientTransformationExtraArgs:
    if not hasattr(x, "update") and callable(x):
        return with_extra_args_support(stateless(lambda updates, params: x(updates)))
    require_transformation(x, f"`{name}` in `measures`")
    return with_extra_args_support(x)


def _blank(name, tx, state, params):
    """Zeros like the measurement, or nothing if it is unknown before the first step."""

    def measurement():
        return tx.update(jax.tree.map(zeros_like, params), state, params)[0]

    try:
        found = jax.eval_shape(measurement)
    except Exception:
        # It may need keywords, or numbers that are known.  What is wrong with it for
        # another reason is raised by `update`.
        return {}
    return {name: _zeros(found)}


def _zeros(found):
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), found)


Metric: TypeAlias = Callable[[Updates, Updates, Params], Any]


class ObserveState(NamedTuple):
    """metrics: from names to what was measured last, zeros before the first step.
    inner_state: of the inner transformation."""

    metrics: dict[str, Any]
    inner_state: OptState


@public("wrapper")
def observe(
    inner: GradientTransformation, metrics: Mapping[str, Metric]
) -> GradientTransformationExtraArgs:
    """Measure what a transformation is given and what it makes of it.

        u = inner(g),   metrics[name] = f(g, u, params)   for each name and f

    The state has its final structure from `init` on, and the updates are those of the
    inner transformation.

    inner: the transformation.
    metrics: from names to functions of the updates before, the updates after, and the
        parameters, which are `None` if `update` is not given them; they return arrays
        or trees of them, of the same shapes at each step.

    Raises a `TypeError` for a metric that is no function.
    """
    require_transformation(inner, "`inner` of `observe`")
    for name, f in metrics.items():
        if not callable(f):
            raise TypeError(
                f"the metric `{name}` of `observe` must be a function of updates "
                f"before, updates after and parameters, but is a `{type(f).__name__}`"
            )
    inner = with_extra_args_support(inner)

    def measure(before, after, params):
        return {
            name: jax.tree.map(jnp.asarray, f(before, after, params))
            for name, f in metrics.items()
        }

    def init(params):
        like = jax.tree.map(zeros_like, params)
        found = jax.eval_shape(lambda: measure(like, like, params))
        return ObserveState(_zeros(found), inner.init(params))

    def update(updates, state, params=None, **extra_args):
        errors.require_state("observe", ObserveState, state)
        after, new = inner.update(updates, state.inner_state, params, **extra_args)
        found = measure(updates, after, params)
        return after, ObserveState(_settled(found, state.metrics), new)

    passes_on = "inner_state", lambda: inner
    return transformation(init, update, inner=(inner,), passes_on=passes_on)


# Not in the registry: what it returns is a measurement, and no update of parameters.
@recipe
def measure_with_ema(
    measure: Callable[[Updates], Any],
    decay: ArrayLike,
    debias: bool = True,
    accumulator_dtype: DTypeLike | None = None,
) -> GradientTransformationExtraArgs:
    """The running mean of a measurement, for `monitor`.

        mean = decay mean + (1 - decay) measure(g)
        u = mean / (1 - decay^t)   if debias, else mean

    measure: a function of the updates, to arrays; `init` calls it on the parameters.
        Booleans and integers are averaged as floating-point numbers.
    decay: weight of the past, in [0, 1).
    debias: whether to make up for the start at zero.
    accumulator_dtype: storage dtype of the mean; that of the measurement if `None`.
    """
    mean = ema(decay, debias, accumulator_dtype)

    def init(params):
        return EmptyState(), mean.init(
            jax.tree.map(_floating, measure(_trainable(params)))
        )

    def update(updates, state, params=None, **extra_args):
        errors.require_states("`measure_with_ema`, which has two,", 2, state)
        nothing, state = state
        found = jax.tree.map(_floating, measure(updates))
        averaged, state = mean.update(found, state)
        return averaged, (nothing, state)

    return transformation(init, update)


def _floating(x):
    x = jnp.asarray(x)
    is_floating = jnp.issubdtype(x.dtype, jnp.inexact)
    return x.astype(x.dtype if is_floating else jnp.result_type(float))
