"""Optimizers on per-example gradients: process, aggregate, then step.

Differences from Optax: means are stored in float32 or wider; the optimizer does not run
while the aggregator accumulates; NaN is not carried from one step into the next.
"""

import functools as ft
import inspect
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from .. import tree
from .._engine import rules as rx
from .._engine.arrays.numerics import is_numeric, safe_increment, upcast, zero_count
from .._wrappers.partition import identity


Axis = int | Sequence[int] | None


class AggregatorUpdateFn(Protocol):
    """Aggregates per-example updates into one update."""

    def __call__(
        self,
        per_elt_updates: rx.Updates,
        state: rx.OptState,
        params: rx.Params | None = None,
        **extra_args: Any,
    ) -> tuple[rx.Updates, rx.OptState]: ...


class Aggregator(rx.GradientTransformationExtraArgs):
    """A pair of functions like a transformation, but from per-example updates to one.

    init:   params -> state
    update: (per_elt_updates, state, params=None) -> (updates, state)
    """


@rx.recorded
def process(
    preprocessor: rx.TransformationLike,
    aggregator: Aggregator | rx.GradientTransformation,
    postprocessor: rx.TransformationLike,
    aggregator_has_aux: bool = False,
) -> Aggregator | rx.GradientTransformationExtraArgs:
    """Process per-example gradients, aggregate them, and process the aggregate.

    While the state of the aggregator has a field `ready` that is false, the updates are
    zeros and the postprocessor does not run.

    preprocessor: receives the per-example updates.
    aggregator: aggregates them into one update.
    postprocessor: receives the aggregate, and the keywords of `update`.
    aggregator_has_aux: whether the aggregator returns a pair of the update and a dict
        of further keywords for the postprocessor.

    Returns an aggregator if `aggregator` is one, otherwise a transformation.
    """
    rx.require_transformation(preprocessor, "`preprocessor` of `process`")
    rx.require_transformation(aggregator, "`aggregator` of `process`")
    rx.require_transformation(postprocessor, "`postprocessor` of `process`")
    before, after = map(rx.with_extra_args_support, (preprocessor, postprocessor))

    def init(params):
        return before.init(params), aggregator.init(params), after.init(params)

    def update(updates, state, params=None, **extra_args):
        first, middle, last = state
        updates, first = before.update(updates, first, params, **extra_args)
        # A user's aggregator may take only three arguments.
        taken = inspect.signature(aggregator.update).parameters.values()
        more = extra_args if any(p.kind is p.VAR_KEYWORD for p in taken) else {}
        found, middle = aggregator.update(updates, middle, params, **more)
        mean, aux = found if aggregator_has_aux else (found, {})

        def step():
            u, new = after.update(mean, last, params, **extra_args, **aux)
            u = rx.map_gradients(lambda g, x: x.astype(g.dtype), mean, updates=u)
            return u, rx.keep_dtypes(new, last)

        def wait():
            return rx.zeros_like_updates(mean), last

        flags = [x for _, x in tree.get_all_with_path(middle, "ready")]
        if not flags:
            updates, last = after.update(mean, last, params, **extra_args, **aux)
        else:
            updates, last = rx.branch(ft.reduce(jnp.logical_and, flags), step, wait)
        return updates, (first, middle, last)

    if isinstance(aggregator, Aggregator):
        return Aggregator(init, update)
    return rx.transformation(init, update, inner={"0": before, "2": after})


@rx.explain_misuse
def average_per_element_updates(per_elt_axis: int | Sequence[int] = 0) -> Aggregator:
    """An aggregator that averages over examples.

    per_elt_axis: example axis or axes.
    """

    def update(per_elt_updates, state, params=None, **extra_args):
        get_batch_size_from_per_elt_updates(per_elt_updates, per_elt_axis)
        return each(mean, per_elt_updates), state

    def mean(g):
        return jnp.mean(upcast(g), axis=axes_of(per_elt_axis)).astype(
            jnp.result_type(g)
        )

    return Aggregator(rx.init_empty_state, update)


@rx.optax_compatible
class AccumulateAvgUpdatesState(NamedTuple):
    """State of `accumulate_avg_updates`.

    micro_step: updates accumulated since the last mean, a scalar.
    ready: whether the last call returned a mean, a scalar.
    avg_grad: mean of the accumulated updates, shaped like the parameters.
    """

    micro_step: jax.Array
    ready: jax.Array
    avg_grad: rx.ArrayTree


@rx.recorded
def accumulate_avg_updates(accumulation_steps: int) -> rx.GradientTransformation:
    """Return the mean of k updates at every k-th step, and zeros at the others.

        avg = avg + (g - avg) / n,   n = 1 ... k;   at n = k: u = avg, avg = 0

    accumulation_steps: k, at least 1.

    Raises ValueError for k below 1.
    """
    check_steps(accumulation_steps)
    if accumulation_steps == 1:
        return identity()

    def prepare(scalars, stat, extra):
        n = safe_increment(scalars[0])
        is_last = n >= accumulation_steps
        return (n, is_last), (jnp.where(is_last, 0, n), is_last)

    def leaf(g, p, ctx, avg):
        n, is_last = ctx
        avg = avg + (g - avg) / n
        return jnp.where(is_last, avg, 0), jnp.where(is_last, 0, avg)

    scalars = {"micro_step": zero_count, "ready": lambda params: jnp.zeros([], bool)}
    slots = {"avg_grad": rx.Slot(wide_zeros, kind="sum")}
    State = AccumulateAvgUpdatesState
    return rx.build(rx.Rule(leaf, State, slots, scalars, prepare, elementwise=True))


@rx.explain_misuse
def average_incrementally_updates(
    per_elt_axis: Axis, accumulation_steps: int
) -> Aggregator | rx.GradientTransformation:
    """Average over examples, and over several batches of them.

    per_elt_axis: example axis or axes; `None` if the updates are already means.
    accumulation_steps: number of batches, at least 1.

    Returns an aggregator, or a transformation if `per_elt_axis` is `None`.  Raises
    ValueError for fewer than 1 batch.
    """
    gather = accumulate_avg_updates(accumulation_steps)
    if per_elt_axis is None:
        return gather
    average = average_per_element_updates(per_elt_axis)

    def init(params):
        return average.init(params), gather.init(params)

    def update(per_elt_updates, state, params=None, **extra_args):
        mean, first = average.update(per_elt_updates, state[0], params)
        mean, second = gather.update(mean, state[1], params)
        return mean, (first, second)

    return Aggregator(init, update)


@rx.explain_misuse
def get_batch_size_from_per_elt_updates(
    per_elt_updates: rx.Updates, per_elt_axis: int | Sequence[int]
) -> int:
    """The number of examples, which must be the same for all leaves.

    per_elt_updates: a tree of arrays.
    per_elt_axis: example axis or axes.

    Raises ValueError, with the path, if a leaf has no such axis or another size.
    """
    axes = axes_of(per_elt_axis)
    sizes: dict[str, int] = {}

    def measure(path, g):
        if not is_numeric(g):
            return
        name, shape = jax.tree_util.keystr(path) or "the root", jnp.shape(g)
        if any(not -len(shape) <= k < len(shape) for k in axes):
            raise ValueError(
                f"the updates at {name} have shape {shape}, so there is no example "
                f"axis {per_elt_axis}"
            )
        sizes[name] = math.prod(shape[k] for k in axes)

    jax.tree_util.tree_map_with_path(measure, per_elt_updates)
    if not sizes:
        raise ValueError("`per_elt_updates` has no arrays, so there is no batch size")
    if len(set(sizes.values())) > 1:
        listed = rx.errors.list_some(f"{n} at {name}" for name, n in sizes.items())
        raise ValueError(f"the numbers of examples differ: {listed}")
    return next(iter(sizes.values()))


def axes_of(axis):
    if axis is None:
        raise ValueError("`per_elt_axis` is None, expected the axis of examples")
    return (axis,) if isinstance(axis, int) else tuple(axis)


def each(f, gradients):
    return jax.tree.map(lambda g: f(g) if is_numeric(g) else g, gradients)


def check_steps(steps):
    if steps < 1:
        raise ValueError(f"`accumulation_steps` is {steps}, expected at least 1")


def wide_zeros(p):
    """Zeros in float32 or wider."""
    with jax.numpy_dtype_promotion("standard"):
        dtype = jnp.promote_types(jnp.result_type(p), jnp.float32)
    return jnp.zeros_like(p, dtype)
