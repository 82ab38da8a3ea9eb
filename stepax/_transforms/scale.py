"""Scaling updates or derivatives: learning rate, signs, factors by path, functions."""

import functools as ft
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._engine import rules as rx
from .._engine.arrays.numerics import is_numeric
from .._wrappers.partition import identity


ScaleState = rx.EmptyState


def value_at(x: rx.ScalarOrSchedule, count: jax.Array | int) -> Any:
    return x(count) if callable(x) else x


@rx.scheduled
@rx.promote_freely
def product(*factors: rx.ScalarOrSchedule | None) -> Any:
    """The product of scalars; a schedule if any factor is one.

    A learning rate of `None`, which leaves updates unchanged, counts as -1.
    """
    known: Any = [-1 if x is None else x for x in factors]
    if any(map(callable, known)):
        return lambda count: math.prod(value_at(x, count) for x in known)
    return math.prod(known)


@rx.public()
def scale(step_size: rx.ArrayLike) -> rx.Rule:
    """Multiply by a constant: u = step_size g.

    step_size: the factor.
    """
    return rx.Rule(lambda g, p, ctx: (step_size * g,), elementwise=True)


@rx.optax_compatible
class ScaleByScheduleState(rx.optax.ScaleByScheduleState):
    """count: steps taken, a scalar."""

    count: jax.Array


@rx.public()
def scale_by_schedule(step_size_fn: rx.Schedule) -> rx.Rule:
    """Multiply by a factor that depends on the step: u = step_size_fn(t) g.

    step_size_fn: maps the number of steps taken before this one to the factor.
    """

    def leaf(g, p, ctx):
        return (ctx * g,)

    return rx.Rule(leaf, **following(step_size_fn, ScaleByScheduleState))


def following(schedule: Callable, State: type) -> dict[str, Any]:
    """Fields of an elementwise rule whose context is the value of a schedule."""
    prepare = rx.from_count(lambda count: jnp.asarray(schedule(count)))
    fields = {"scalars": rx.COUNT, "prepare": prepare, "elementwise": True}
    return {"State": State, **fields}


@rx.public()
def scale_by_learning_rate(
    learning_rate: rx.ScalarOrSchedule | None = None, *, flip_sign: bool = True
) -> rx.GradientTransformationExtraArgs:
    """Multiply by the negated learning rate: u = -learning_rate g.

    learning_rate: a scalar or a schedule, see `scale_by_schedule`; `None` leaves the
        updates unchanged.
    flip_sign: whether to negate the learning rate.
    """
    if learning_rate is None:
        return identity()
    sign = -1 if flip_sign else 1
    if isinstance(learning_rate, Callable):
        return scale_by_schedule(product(sign, learning_rate))
    rate: Any = learning_rate
    return scale(sign * rate)


@rx.traits("normalizes")
@rx.public()
def scale_by_sign() -> rx.Rule:
    """Take the sign of each element: u = sign(g)."""
    return rx.Rule(lambda g, p, ctx: (jnp.sign(g),), elementwise=True)


@rx.traits("calls a function")
@rx.public()
def stateless(
    f: Callable[[rx.Updates, rx.Params | None], rx.Updates],
) -> rx.GradientTransformation:
    """Make a transformation from a function of the gradients: u = f(g, p).

    f: a function of two trees, the gradients and the parameters; the latter is `None`
        if `update` is called without parameters.
    """

    def update(updates, state, params=None, **extra_args):
        return f(updates, params), state

    return rx.transformation(rx.init_empty_state, update)


@rx.traits("calls a function")
@rx.public()
def stateless_with_tree_map(f: Callable[[Any, Any], Any]) -> rx.GradientTransformation:
    """Make a transformation from a function of single arrays: u = f(g, p).

    f: a function of two arrays, a gradient and its parameter; the latter is `None` if
        `update` is called without parameters.  Not called for missing gradients.
    """

    def update(updates, state, params=None, **extra_args):
        if params is None:
            return rx.map_gradients(lambda g: f(g, None), updates), state
        return rx.map_gradients(f, updates, params=params), state

    return rx.transformation(rx.init_empty_state, update)


@rx.explain_misuse
def scale_gradient(inputs: rx.ArrayTree, scale: rx.ArrayLike) -> rx.ArrayTree:
    """The identity, with its derivative multiplied by a scalar.

        f(x) = x,   ∂f/∂x = scale

    Unlike in Optax, `scale` may be traced, and forward-mode derivatives work, too.

    inputs: a tree; leaves without a derivative are unchanged.
    scale: a scalar; 0 gives a derivative of 0, even for NaN or infinite cotangents.

    Raises ValueError if `scale` is not a scalar.
    """
    if np.shape(scale) != ():
        raise ValueError(f"`scale` has shape {np.shape(scale)}, expected a number")
    is_known = isinstance(scale, int | float | np.generic)
    if is_known and scale == 1:
        return inputs

    def leaf(x):
        if not rx.is_array(x) or not is_numeric(x):
            return x
        if not jnp.issubdtype(jnp.result_type(x), jnp.inexact):
            return x
        if is_known and scale == 0:
            return jax.lax.stop_gradient(x)
        return _scaled(jnp.asarray(x), jnp.asarray(scale))

    return jax.tree.map(leaf, inputs)


@jax.custom_jvp
def _scaled(x, scale):
    return x


@_scaled.defjvp
def _tangent(primals, tangents):
    (x, scale), (dx, _) = primals, tangents
    return _scaled(x, scale), scale.astype(dx.dtype) * dx


@rx.public()
def scale_by_path(factors: rx.ScalarOrSchedule) -> rx.GradientTransformationExtraArgs:
    """Multiply by a factor that depends on the path: u = factor(path) g.

    factors: a mapping from path patterns to scalars or schedules; the first pattern
        that matches decides, and other leaves keep their updates.  Patterns are as in
        masks: "encoder/layers/*", or a name at any depth.

    Raises a `ValueError` for a pattern that matches nothing.

    >>> tx = stepax.chain(stepax.adamw(1e-3), stepax.scale_by_path({"b": 0.1}))
    """
    return scale_by_learning_rate(factors, flip_sign=False)


@rx.public(ranges={"decay": rx.AT_LEAST_0})
def scale_by_depth(
    decay: rx.ArrayLike,
    layers: str | Callable[[str], int | None],
    *,
    before: str | Sequence[str] = (),
) -> rx.Rule:
    """Multiply by a factor that decays from the last layer to the first.

        u = decay^(last - i) g in layer i, where `last` is the largest
        u = decay^(last - first + 1) g    before the first layer
        u = g                         elsewhere, such as in the head

    decay: the factor from each layer to the one before it, at least 0.
    layers: the path of a layer with "{}" for its number, as in "encoder/layers/{}" or
        "blocks_{}", where other names may be patterns; or a function from the path of
        a leaf to the number of its layer, `None` elsewhere.
    before: patterns of the leaves before the layers, such as "embed/**".

    Raises a `ValueError` if no leaf is in a layer, or if a pattern matches nothing.
    """
    ahead = (before,) if isinstance(before, str) else tuple(before)

    @ft.cache
    def rule(power: int) -> rx.Rule:
        return rx.Rule(lambda g, p, ctx: (decay**power * g,), elementwise=True)

    number = layers if callable(layers) else _numbered(layers)
    labels = ft.partial(_powers, number, ahead)
    return rx.Rule(rx.unchanged, elementwise=True, varied=rx.Varied(labels, rule))


def _powers(number: Callable, ahead: tuple, tree: rx.ArrayTree) -> list:
    """The power of the factor for each leaf."""
    paths = ["/".join(path) for path in rx.selection.leaf_names(tree)]
    if not paths:
        return []
    numbers = list(map(number, paths))
    found = [i for i in numbers if i is not None]
    if not found:
        raise ValueError(
            "`layers` of `scale_by_depth` matches no leaf of "
            f"{rx.errors.list_some(paths)}"
        )
    what = "before of scale_by_depth"
    first = rx.selection.resolve_patterns(ahead, tree, what, is_open=True)
    start = max(found) - min(found) + 1
    pairs = zip(numbers, first, strict=True)
    return [
        max(found) - i if i is not None else 0 if j in (None, len(ahead)) else start
        for i, j in pairs
    ]


def _numbered(layers: str) -> Callable[[str], int | None]:
    """A function from a path to the number of its layer."""
    if not isinstance(layers, str) or layers.count("{}") != 1:
        raise ValueError(
            '`layers` of `scale_by_depth` must be a path with one "{}" for the number '
            f'of the layer, such as "encoder/layers/{{}}", but is {layers!r}'
        )
    names = layers.split("/")
    n = next(i for i, name in enumerate(names) if "{}" in name)
    form = re.escape(names[n]).replace(r"\{\}", r"(\d+)")

    def number(path):
        here = path.split("/")
        others = [(*x[:n], *x[n + 1 : len(names)]) for x in (names, here)]
        found = re.fullmatch(form, here[n]) if len(here) >= len(names) else None
        return int(found[1]) if found and rx.selection.is_match(*others) else None

    return number
