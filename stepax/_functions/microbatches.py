"""Splitting the arguments of a call into microbatches, without moving data."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from .._engine import rules as rx
from .._engine.factories.ranges import real_array, share, weights


def axes_of(numbers: list[int], names: list[str], in_axes: Any) -> dict[Any, Any]:
    """The batch axis of each argument, by its position or name."""
    known = [*numbers, *names]
    if isinstance(in_axes, Mapping):
        if unknown := [k for k in in_axes if k not in known]:
            raise ValueError(
                f"`in_axes` has {unknown[0]!r}, which is in neither `argnums` "
                f"{numbers} nor `argnames` {names}"
            )
        return dict.fromkeys(known, 0) | dict(in_axes)
    if isinstance(in_axes, int):
        return dict.fromkeys(known, in_axes)
    axes = list(in_axes)
    if len(axes) == len(numbers):
        axes += [0] * len(names)
    if len(axes) != len(known):
        raise ValueError(
            f"`in_axes` has {len(axes)} axes, expected {len(known)}, one for each of "
            "`argnums` and `argnames`"
        )
    return dict(zip(known, axes, strict=True))


def _parameters(f: Callable) -> list[inspect.Parameter]:
    """The parameters of a function; none if they are not known."""
    try:
        return list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        return []


def positional(f: Callable) -> list[str]:
    """The names of the parameters that may be passed by position or by name."""
    return [p.name for p in _parameters(f) if p.kind is p.POSITIONAL_OR_KEYWORD]


def takes_keyword(f: Callable, name: str) -> bool:
    return any(p.name == name or p.kind is p.VAR_KEYWORD for p in _parameters(f))


def place(name: int | str, args: tuple, kwargs: dict, ordered: list[str]) -> int | str:
    """The position or keyword of an argument in a call; ordered: known parameters."""
    if isinstance(name, str):
        if name not in kwargs and name not in ordered[: len(args)]:
            raise ValueError(
                f"`argnames` has {name!r}, but the call passes no such argument, by "
                "keyword or by position"
            )
        return name if name in kwargs else ordered.index(name)
    named = [k for k, x in enumerate(ordered) if x in kwargs]
    count = max([len(args), *(k + 1 for k in named)])
    at = name + count if name < 0 else name
    if 0 <= at < len(args):
        return at
    if at not in named:
        raise ValueError(
            f"`argnums` has {name}, but the call has {len(args)} positional arguments"
            + (f" and {sorted(kwargs)}" if kwargs else "")
        )
    return ordered[at]


def axis_of(x, axis, name):
    ndim = jnp.ndim(x)
    if not -ndim <= axis < ndim:
        raise ValueError(
            f"{name} has shape {jnp.shape(x)}, so it has no batch axis {axis}"
        )
    return axis % ndim


def count_of(rows, size, name):
    if size < 1 or rows % size:
        raise ValueError(
            f"{name} has {rows} rows, not divisible by the `microbatch_size` {size}; "
            "choose a divisor, or pad the batch and give the padding weight 0"
        )
    return rows // size


def cut(x, axis, size):
    """Split the batch axis into rows and microbatches, without moving data."""
    shape = jnp.shape(x)
    count = shape[axis] // size
    return jnp.reshape(x, (*shape[:axis], size, count, *shape[axis + 1 :]))


class Parts:
    """The arguments of a call, some of them split into microbatches.

    places: maps positions and keywords of arguments to their batch axes, which may be
        prefixes of their trees.
    size: rows of a microbatch; all if `None`.
    """

    def __init__(self, args, kwargs, places, size):
        call = list(args), kwargs
        self.leaves, self.treedef = jax.tree.flatten(call)
        names = _names(call)
        axes = []
        for place, x in [*enumerate(args), *sorted(kwargs.items())]:
            axes += spread(places.get(place), x, "in_axes", f"argument {place}")
        self.axes, rows = [], {}
        for x, axis, name in zip(self.leaves, axes, names, strict=True):
            self.axes.append(None if axis is None else axis_of(x, axis, name))
            if axis is not None:
                rows[name] = jnp.shape(x)[self.axes[-1]]
        if not rows:
            raise ValueError("no argument has a batch axis: there is nothing to split")
        first, wanted = next(iter(rows.items()))
        for name, found in rows.items():
            if found != wanted:
                raise ValueError(
                    f"{name} has {found} rows and {first} has {wanted}, but the batch "
                    "axes must have the same length"
                )
        self.size = size = max(wanted, 1) if size is None else size
        self.count = count_of(wanted, size, first)
        pairs = zip(self.leaves, self.axes, strict=True)
        self.cut = [x if k is None else cut(x, k, size) for x, k in pairs]

    def take(self, i):
        """The arguments for microbatch i; placeholders shaped like them if none."""

        def leaf(x, axis):
            if axis is None:
                return x
            if not self.count:
                shape = (*x.shape[: axis + 1], *x.shape[axis + 2 :])
                return jnp.zeros(shape, x.dtype)
            return jax.lax.dynamic_index_in_dim(x, i, axis + 1, keepdims=False)

        return self.treedef.unflatten(map(leaf, self.cut, self.axes))


def paths(tree: rx.ArrayTree) -> list[str]:
    found = jax.tree_util.tree_leaves_with_path(tree)
    return [jax.tree_util.keystr(path) or "the root" for path, _ in found]


def _names(call):
    """The name of each leaf for errors."""
    found = []
    for path, _ in jax.tree_util.tree_leaves_with_path(call):
        kind, name, *rest = path
        place = f"argument {name.idx}" if kind.idx == 0 else f"`{name.key}`"
        found.append(f"{place}{jax.tree_util.keystr(tuple(rest))}")
    return found


def spread(prefix: Any, tree: rx.ArrayTree, name: str, what: str) -> list:
    """Broadcast a prefix to the leaves of a tree; `None` is a value.

    name, what: what errors call both.
    """
    found = []

    def extend(x, part):
        found.extend([x] * len(jax.tree.leaves(part)))

    try:
        jax.tree.map(extend, prefix, tree, is_leaf=rx.is_none)
    except (ValueError, TypeError):
        raise rx.errors.mismatch(name, prefix, what, tree) from None
    return found


def types_of(example):
    """Shapes, dtypes and shardings of a function's result, without running it."""
    found = []

    def run():
        result = example()
        found.append(jax.tree.map(jax.typeof, result))
        return result

    jax.eval_shape(run)
    return found[-1]


def zeros(shape, like, axis=None):
    """Zeros sharded like a result; a new axis is not sharded."""
    mesh, spec = like.sharding.mesh, [*like.sharding.spec]
    if mesh.empty or not any(spec):
        return jnp.zeros(shape, like.dtype)
    if axis is not None:
        spec.insert(axis, None)
    place = NamedSharding(mesh, PartitionSpec(*spec))
    return jax.sharding.reshard(jnp.zeros(shape, like.dtype), place)


def start(way, struct, among):
    """The initial carry, varying over axes like results and weights in `shard_map`."""
    inside = jax.sharding.get_abstract_mesh().manual_axes
    axes = tuple(rx.varying(struct) | among) if inside else ()

    def vary(x):
        return jax.lax.pcast(jnp.asarray(x), axes, to="varying")

    carry = way.init(struct)
    return jax.tree.map(vary, carry) if axes else carry


def axes_by_name(in_axes, args, kwargs):
    """The batch axis of each argument of a call, by position or keyword."""
    known = [*range(len(args)), *kwargs]
    if unknown := [k for k in in_axes if k not in known]:
        raise ValueError(f"`in_axes` has {unknown[0]!r}, but the call has {known}")
    return dict.fromkeys(known, 0) | dict(in_axes)


def mapped_by_name(fun, in_axes, vmap_fn):
    """A function mapped along axes that are given by position or keyword."""

    def mapped(*args, **kwargs):
        named = axes_by_name(in_axes, args, kwargs)
        axes = tuple(named.pop(k) for k in range(len(args))), named
        return vmap_fn(
            lambda args, kwargs: fun(*args, **kwargs), in_axes=axes, out_axes=0
        )(args, kwargs)

    return mapped


NAME = "`weight` of `microbatch`"


class Weights:
    """The weight of each microbatch: the sum over its rows.

    each: the weights, in float32.
    upto: a function of n, the sum of the first n weights.
    """

    def __init__(self, weight: Any, parts: Parts):
        given, rows = real_array(weight, NAME), parts.count * parts.size
        if not given.shape or given.shape[0] != rows:
            raise ValueError(
                f"{NAME} has shape {given.shape}, expected {rows} rows, one for each "
                "row of the batch"
            )
        given = jnp.asarray(weights(given, NAME))
        rest = tuple(i for i in range(given.ndim + 1) if i != 1)
        self.each = jnp.sum(cut(given, 0, parts.size), axis=rest)
        self.sums = jnp.concatenate([jnp.zeros(1), jnp.cumsum(self.each)])
        self.total = self.sums[-1]
        self.varying = rx.varying(jax.typeof(self.each))

    def upto(self, n: Any) -> jax.Array:
        return self.sums[n]

    def mix(self, mean: jax.Array, x: jax.Array, i: Any) -> jax.Array:
        """The weighted mean with result i."""
        w = self.each[i]
        n = share(self.sums[i + 1], jnp.where(w == 0, 1, w), x.dtype)
        return jnp.where(w == 0, mean, mean + (x - mean) / n)

    def term(self, x: jax.Array, i: Any) -> jax.Array:
        """Result i in a weighted sum; counts are not weighted."""
        w = self.each[i]
        is_inexact = jnp.issubdtype(x.dtype, jnp.inexact)
        mine = w.astype(x.real.dtype) * x if is_inexact else x
        return jnp.where(w == 0, jnp.zeros_like(mine), mine)

    def of_all(self, total: jax.Array) -> jax.Array:
        """A weighted sum divided by the sum of all weights; 0 if that is 0."""
        return total / jnp.where(self.total == 0, 1, self.total).astype(
            total.real.dtype
        )
