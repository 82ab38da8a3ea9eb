"""Sizes of gradients, updates and parameters, and the angle to the last gradient.

All metrics choose the leaves of trees as here.
"""

from collections.abc import Callable
from typing import Any, Literal, ParamSpec, TypeAlias, TypeVar

import jax
import jax.numpy as jnp

from .. import tree
from .._engine.arrays.numerics import is_numeric, upcast
from .._engine.base import Params, Updates, as_array, is_array, is_none
from .._engine.base.call import Call, known_by_call
from .._engine.factories.scheduled import MadeFunction, known
from .._engine.step.rule import zeros_like
from .._engine.trees import errors
from .._engine.trees.apply import apply_updates
from .._engine.trees.paths import join
from .._wrappers.monitor import Metric, StatefulMetric


P = ParamSpec("P")
R = TypeVar("R")

Of: TypeAlias = Literal["gradients", "updates", "params"]


# The factories of metrics, by name.
METRICS: dict[str, Callable] = {}


@known_by_call
class MadeStateful(StatefulMetric):
    """A metric with a memory, and the call that made it."""

    def __init__(self, made: StatefulMetric, call: Call):
        super().__init__(made.init, made.measure, made.reads)
        vars(self)["call"] = call  # the class is frozen


def _made(made: Any, call: Call) -> Any:
    kind: Any = MadeStateful if isinstance(made, StatefulMetric) else MadeFunction
    return kind(made, call)


def metric(factory: Callable[P, R]) -> Callable[P, R]:
    """Let the metrics that `factory` makes be printed, compared and pickled."""
    return known(factory, _made, METRICS)


def require_params(x: Any) -> None:
    if x is None:
        raise ValueError("this metric needs `params`: pass them to `update`")


def is_number(x: Any) -> bool:
    return is_array(x) and is_numeric(x)


def beside(x: Any, y: Any) -> list[tuple]:
    """Pairs of the leaves of two trees, `None` included."""
    leaves, treedef = jax.tree.flatten(x, is_leaf=is_none)
    return list(zip(leaves, treedef.flatten_up_to(y), strict=True))


def layers_of(depth: int | None, first: Any, *others: Any) -> dict[str, list]:
    """The leaves of trees by layer: a list for each tree, or `None` for `None`."""
    paths, treedef = jax.tree_util.tree_flatten_with_path(first, is_leaf=is_none)
    trees = [x if x is None else treedef.flatten_up_to(x) for x in (first, *others)]
    places: dict[str, list[int]] = {}
    for i, (path, _) in enumerate(paths):
        places.setdefault(join(path[:depth]), []).append(i)
    return {
        name: [x if x is None else [x[i] for i in at] for x in trees]
        for name, at in places.items()
    }


@metric
def rms(of: Of = "gradients") -> Callable[[Updates, Updates, Params], jax.Array]:
    """The root mean square of all elements of a tree; 0 if there are none.

        sqrt(Σ |x|² / n)

    of: "gradients" for the updates before the transformation, "updates" for the updates
        after it, or "params".

    Raises a `ValueError` for any other `of`.
    """
    places = {"gradients": 0, "updates": 1, "params": 2}
    errors.require_one_of("of", of, places)

    def measure(*trees):
        x = trees[places[of]]
        if of == "params":
            require_params(x)
        # A model may also hold functions.
        arrays = [y for y in jax.tree.leaves(x) if is_number(y)]
        return tree.norm(arrays) / max(tree.size(arrays), 1) ** 0.5

    return measure


@metric
def update_ratio() -> Callable[[Updates, Updates, Params], jax.Array]:
    """The size of the updates relative to the parameters; 0 if these are all 0.

        |u| / |p|

    Only parameters that have an update are counted.
    """

    def measure(before, after, params):
        require_params(params)
        pairs = [x for x in beside(after, params) if all(map(is_number, x))]
        u, p = (tree.norm([x[i] for x in pairs]) for i in (0, 1))
        return jnp.where(p > 0, u / jnp.where(p > 0, p, 1), 0)

    return measure


@metric
def lost_updates() -> Metric:
    """The share of the entries of each array whose update is rounded away.

        Σ (u != 0 and p + u = p) / n,   with p + u rounded to the dtype of p

    It is a dict from paths.  Put `observe` around the whole optimizer, whose updates
    are those that `apply_updates` adds.
    """

    def measure(before, after, params):
        require_params(params)
        (u,), (p,) = after, params
        if not (is_number(u) and is_number(p)):
            return jnp.zeros([])
        u, p = as_array(u), as_array(p)
        is_lost = (u != 0) & (apply_updates(p, u) == p)
        return jnp.sum(is_lost, dtype=jnp.float32) / max(jnp.size(p), 1)

    return by_layer(measure, None)


@metric
def by_layer(metric: Metric, depth: int | None = 1) -> Metric:
    """A metric of each layer: a dict from the names of layers to values.

    metric: a function of gradients, updates and parameters, which are passed as lists.
    depth: number of names in a path that identify a layer, >= 1; `None` for each array.

    Raises a `ValueError` for another `depth`, and a `TypeError` if `metric` is not a
    metric.
    """
    if depth is not None and (isinstance(depth, bool) or depth < 1):
        raise ValueError(f"`depth` is {depth!r}, expected 1 or more, or `None`")
    if isinstance(metric, StatefulMetric):
        return _stateful_by_layer(metric, depth)
    if not callable(metric):
        raise TypeError(f"`metric` is {errors.describe(metric)}, expected a metric")

    def measure(before, after, params):
        parts = layers_of(depth, before, after, params)
        return {name: metric(*xs) for name, xs in parts.items()}

    return measure


def _stateful_by_layer(metric: StatefulMetric, depth: int | None) -> StatefulMetric:
    def init(params):
        parts = layers_of(depth, params)
        first = {name: metric.init(p) for name, (p,) in parts.items()}
        return _apart(first)

    def measure(memory, seen):
        parts = layers_of(depth, seen.before, seen.after, seen.params)
        found = {}
        for name, (before, after, params) in parts.items():
            part = seen._replace(before=before, after=after, params=params)
            found[name] = metric.measure(memory[name], part)
        return _apart(found)

    return StatefulMetric(init, measure)


def _apart(pairs: dict[str, tuple]) -> tuple[dict, dict]:
    """Values and memories of layers."""
    return {k: x for k, (x, _) in pairs.items()}, {k: y for k, (_, y) in pairs.items()}


@metric
def cosine_to_last() -> StatefulMetric:
    """The cosine of the angle between a gradient and the previous one.

        Re(g · g') / (|g| |g'|)

    It is 0 at the first step and where either is 0; it is NaN for a gradient that is
    not finite, and the next gradient is compared with the last finite one.  The memory
    is a copy of the gradient in the dtypes of the parameters.
    """

    def init(params):
        return jnp.zeros([]), jax.tree.map(zeros_like, params)

    def measure(last, seen):
        pairs = [x for x in beside(seen.before, last) if all(map(is_number, x))]
        gs, ms = ([as_array(x[i]) for x in pairs] for i in (0, 1))
        size, was = tree.norm(gs), tree.norm(ms)
        # Divided before the product, which might underflow for small gradients.
        units = [_unit(g, size) for g in gs], [_unit(m, was) for m in ms]
        cosine = jnp.real(jnp.asarray(tree.vdot(*units)))
        is_finite = jnp.isfinite(size)

        def keep(g, m):
            if not (is_number(g) and is_number(m)):
                return m
            return jnp.where(is_finite, as_array(g).astype(m.dtype), m)

        return cosine, jax.tree.map(keep, seen.before, last, is_leaf=is_none)

    return StatefulMetric(init, measure)


def _unit(x, size):
    wide = upcast(x)
    return wide / jnp.where(size == 0, 1, size).astype(wide.dtype)
