"""Evaluating a function on one microbatch at a time, to save memory.

The batch is split into microbatches; a loop evaluates the function on each and
accumulates the results, so that only one of them is in memory.  Microbatch i of n
consists of the rows i, i + n, i + 2n and so on, which preserves a sharding of the
batch.

Differences from Optax: a batch may be empty; bfloat16 and float16 are accumulated in
float32 and rounded at the end; errors name the argument, its path and the sizes;
`micro_vmap` accepts trees of axes; `num_real_microbatches` is clipped to the number
available.
"""

import enum
import functools as ft
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ._engine import rules as rx
from ._engine.arrays.numerics import upcast
from ._engine.step.array_split import require_axes, weighted_mean
from ._functions import microbatches as mb
from ._names import attributes


__all__ = [
    "AccumulationType", "Accumulator", "Aux", "micro_grad", "micro_vmap", "microbatch",
    "reshape_batch_axis",
]  # fmt: skip

if not TYPE_CHECKING:
    __dir__, __getattr__ = attributes(__name__)


class AccumulationType(enum.Enum):
    """How the results of microbatches are combined.

    MEAN: their sum divided by the number of all microbatches, evaluated or not.
    SUM: their sum; for booleans, whether any is true.
    RUNNING_MEAN: the mean over the evaluated microbatches.
    CONCAT: concatenation in the order of the batch; scalars become a vector.
    """

    MEAN = 1
    SUM = 2
    RUNNING_MEAN = 3
    CONCAT = 4


@dataclass(frozen=True)
class Accumulator:
    """A custom way to combine the results of microbatches, for one array.

    init: maps the shape and dtype of one result to the initial carry.
    update: (carry, result, index) -> carry.
    finalize: maps the last carry to the returned value.
    aggregate: maps results stacked by example to that of a microbatch; for
        `micro_vmap`.
    """

    init: Callable[[Any], Any]
    update: Callable[[Any, Any, Any], Any]
    finalize: Callable[[Any], Any]
    aggregate: Callable[[Any], Any]


class Aux(NamedTuple):
    """Auxiliary results of `micro_grad`, each with a leading axis of examples.

    values: values of the function.  metrics: metrics of the gradients.  aux: auxiliary
        outputs of the function.
    """

    values: rx.ArrayTree
    metrics: rx.ArrayTree
    aux: rx.ArrayTree


@rx.explain_misuse
def reshape_batch_axis(
    tree: rx.ArrayTree, microbatch_size: int, axis: int = 0
) -> rx.ArrayTree:
    """Split an axis into two, over microbatches and over the rows of each.

        y[i, k] = x[i + k n],   n microbatches

    tree: a tree of arrays.
    microbatch_size: number of rows per microbatch, >= 1.
    axis: the axis to split; negative axes count from the end.

    Raises ValueError, with the path, if the size does not divide the axis.
    """
    leaves, treedef = jax.tree.flatten(tree)

    def one(x, name):
        at = mb.axis_of(x, axis, f"the leaf at {name}")
        mb.count_of(jnp.shape(x)[at], microbatch_size, f"the leaf at {name}")
        return jnp.swapaxes(mb.cut(x, at, microbatch_size), at, at + 1)

    return treedef.unflatten(map(one, leaves, mb.paths(tree)))


@rx.explain_misuse
def microbatch(
    fun: Callable[..., Any],
    argnums: int | Sequence[int],
    microbatch_size: int | None,
    accumulator: Any = AccumulationType.SUM,
    *,
    argnames: str | Sequence[str] = (),
    in_axes: int | Sequence[int] | Mapping[int | str, int] = 0,
    num_real_microbatches: ArrayLike | None = None,
    axis_name: str | tuple[str, ...] | None = None,
) -> Callable[..., Any]:
    """Transform `fun` to evaluate one microbatch at a time.

    fun: a function from arrays with a batch axis to a tree of arrays.
    argnums, argnames: the arguments that have a batch axis, by position or parameter
        name; a call may pass each of them either way.
    microbatch_size: number of rows per evaluation of `fun`, a divisor of the batch
        size; `None` for all.
    accumulator: how results are combined; an `AccumulationType`, an `Accumulator`, or a
        tree of them that is a prefix of the result.
    in_axes: the batch axis, of all arguments or of each in `argnums` and `argnames`; or
        a dict from these to axes, 0 by default.
    num_real_microbatches: number of microbatches to evaluate, from the first; all if
        `None`.  It may be traced, but then there is no reverse-mode derivative.
    axis_name: mesh axis, or axes, inside `shard_map`, over which the batch is split;
        means and sums are then over the whole batch.

    Returns a function, which returns zeros for an empty batch.  Unless `fun` itself
    takes `weight`, this function takes it: an array with a row for each row of the
    batch, such as a mask of tokens, whose sum over a microbatch is the weight of its
    result.  Sums and means are then weighted; a microbatch of weight 0 does not count,
    even if its result is NaN.  It raises ValueError, with the argument and its path, if
    sizes do not fit.
    """
    numbers = [argnums] if isinstance(argnums, int) else list(argnums)
    names = [argnames] if isinstance(argnames, str) else list(argnames)
    _check_plan(microbatch_size, num_real_microbatches)
    known, ordered = mb.axes_of(numbers, names, in_axes), mb.positional(fun)
    is_read = "weight" not in names and not mb.takes_keyword(fun, "weight")

    def run(*args, **kwargs):
        weight = kwargs.pop("weight", None) if is_read else None
        places = {mb.place(k, args, kwargs, ordered): axis for k, axis in known.items()}
        if microbatch_size is None and weight is None and axis_name is None:
            return fun(*args, **kwargs)
        parts = mb.Parts(args, kwargs, places, microbatch_size)
        weights = None if weight is None else mb.Weights(weight, parts)
        return _loop(fun, parts, accumulator, num_real_microbatches, weights, axis_name)

    return run


@rx.explain_misuse
def micro_vmap(
    fun: Callable[..., Any],
    in_axes: Any = 0,
    out_axes: Any = 0,
    *,
    microbatch_size: int | None = None,
    vmap_fn: Callable[..., Any] = jax.vmap,
    accumulator: Any = AccumulationType.CONCAT,
    num_real_microbatches: ArrayLike | None = None,
) -> Callable[..., Any]:
    """`jax.vmap`, one microbatch at a time.

    fun: a function from one example to a tree of arrays.
    in_axes: as for `jax.vmap`, where keywords are mapped along their first axis; or a
        dict from positions and keywords to axes, 0 by default.
    out_axes: must be 0.
    microbatch_size: number of examples mapped at a time; `None` for all.
    vmap_fn: used instead of `jax.vmap`.
    accumulator: how results are combined; see `microbatch`.
    num_real_microbatches: number of microbatches to evaluate; all if `None`.

    Raises ValueError for other `out_axes`; the returned function raises one if sizes
    do not fit.
    """
    if out_axes != 0:
        raise ValueError(f"`out_axes` is {out_axes}, expected 0")
    _check_plan(microbatch_size, num_real_microbatches)
    if isinstance(in_axes, Mapping):
        mapped = mb.mapped_by_name(fun, in_axes, vmap_fn)
    else:
        mapped = vmap_fn(fun, in_axes=in_axes, out_axes=0)

    def aggregated(*args, **kwargs):
        found = mapped(*args, **kwargs)
        leaves, treedef = jax.tree.flatten(found)
        ways = _ways(_kinds(accumulator, found), found, 1)
        pairs = zip(ways, leaves, strict=True)
        return treedef.unflatten(way.aggregate(x) for way, x in pairs)

    def run(*args, **kwargs):
        if microbatch_size is None:
            return aggregated(*args, **kwargs)
        axes = in_axes
        if not isinstance(in_axes, Mapping):
            several = isinstance(in_axes, tuple | list)
            axes = dict(enumerate(in_axes if several else (in_axes,) * len(args)))
            if len(axes) != len(args):
                raise ValueError(
                    f"`in_axes` has {len(axes)} axes, expected {len(args)}, one for "
                    "each argument"
                )
        places = mb.axes_by_name(axes, args, kwargs)
        parts = mb.Parts(args, kwargs, places, microbatch_size)
        return _loop(aggregated, parts, accumulator, num_real_microbatches)

    return run


@rx.explain_misuse
def micro_grad(
    fun: Callable[..., Any],
    has_aux: bool = False,
    argnums: int | Sequence[int] = 0,
    *,
    batch_argnums: int | Sequence[int] = 1,
    keep_batch_dim: bool = True,
    microbatch_size: int | None = None,
    accumulator: Any = AccumulationType.SUM,
    transform_fn: Callable[[Any], Any] = lambda gradient: gradient,
    metrics_fn: Callable[[Any], Any] = lambda gradient: None,
    num_real_microbatches: ArrayLike | None = None,
) -> Callable[..., tuple[Any, Aux]]:
    """Transform the gradient of each example, and combine them.

        Σ transform_fn(∇ fun(params, example))   over examples, or as `accumulator` says

    fun: a function that returns a scalar.
    has_aux: whether `fun` returns a pair (scalar, aux).
    argnums: the arguments to differentiate with respect to.
    batch_argnums: the arguments with a leading batch axis; all keywords have one.
    keep_batch_dim: whether `fun` receives a batch of one example or the example itself.
    transform_fn: applied to the gradient of each example, such as clipping.
    metrics_fn: applied to the same gradient; its result is returned for each example.
    microbatch_size: number of examples at a time; `None` for all.
    accumulator: how gradients are combined; see `microbatch`.
    num_real_microbatches: number of microbatches to evaluate; all if `None`.

    Returns a function like `fun` that returns the gradients and an `Aux`.
    """
    batched = [batch_argnums] if isinstance(batch_argnums, int) else [*batch_argnums]
    ordered = mb.positional(fun)
    gradient = jax.value_and_grad(fun, argnums, has_aux=has_aux)

    def one(places, *args, **kwargs):
        if keep_batch_dim:
            put = ft.partial(jax.tree.map, lambda y: jnp.expand_dims(y, 0))
            args = [put(x) if k in places else x for k, x in enumerate(args)]
            kwargs = put(kwargs)
        found, g = gradient(*args, **kwargs)
        value, aux = found if has_aux else (found, None)
        return transform_fn(g), Aux(value, metrics_fn(g), aux)

    def run(*args, **kwargs):
        places = {mb.place(k, args, kwargs, ordered) for k in batched}
        mapped = micro_vmap(
            ft.partial(one, places),
            in_axes=tuple(0 if k in places else None for k in range(len(args))),
            microbatch_size=microbatch_size,
            accumulator=(accumulator, AccumulationType.CONCAT),
            num_real_microbatches=num_real_microbatches,
        )
        return mapped(*args, **kwargs)

    return run


def _check_plan(size, real):
    if size is not None and size < 1:
        raise ValueError(f"`microbatch_size` is {size}, expected at least 1")
    if isinstance(real, int) and real < 0:
        raise ValueError(f"`num_real_microbatches` is {real}, expected at least 0")


def _kinds(accumulator, result):
    """What was given for each leaf of a result."""
    return mb.spread(accumulator, result, "accumulator", "the result")


def _ways(kinds, result, count, weights=None):
    """The accumulator of each leaf of a result."""
    each = zip(kinds, jax.tree.leaves(result), mb.paths(result), strict=True)
    return [_way(kind, x, count, name, weights) for kind, x, name in each]


def _loop(fun, parts, accumulator, real, weights=None, axis_name=None):
    def evaluate(call):
        args, kwargs = call
        return jax.tree.map(jnp.asarray, fun(*args, **kwargs))

    types = mb.types_of(lambda: evaluate(parts.take(0)))
    kinds, (structs, treedef) = _kinds(accumulator, types), jax.tree.flatten(types)
    ways = _ways(kinds, types, parts.count, weights)
    if weights is not None and not any(k in _WEIGHTED for k in kinds):
        raise ValueError(
            f"{mb.NAME} has no effect: no result is accumulated as a SUM, MEAN or "
            "RUNNING_MEAN"
        )

    def step(i, carries):
        values = jax.tree.leaves(evaluate(parts.take(i)))
        each = zip(ways, carries, values, strict=True)
        return [way.update(carry, x, i) for way, carry, x in each]

    among = frozenset() if weights is None else weights.varying
    carries = [mb.start(way, s, among) for way, s in zip(ways, structs, strict=True)]
    least = min if isinstance(real, int) else jnp.minimum
    last = parts.count if real is None else least(real, parts.count)
    if parts.count:
        carries = jax.lax.fori_loop(0, last, step, carries)
    results = [way.finalize(x) for way, x in zip(ways, carries, strict=True)]
    if axis_name is not None:
        rows = zip(kinds, results, strict=True)
        results = [_over(axis_name, k, x, last, weights) for k, x in rows]
    return treedef.unflatten(results)


_WEIGHTED = (
    AccumulationType.SUM,
    AccumulationType.MEAN,
    AccumulationType.RUNNING_MEAN,
)


def _over(axis_name, kind, x, last, weights):
    """The result over all devices, from the result on each."""
    require_axes(axis_name, "the function")
    if kind is AccumulationType.SUM:
        total = jax.lax.psum(x.astype(jnp.int32) if x.dtype == bool else x, axis_name)
        return total.astype(x.dtype)
    if kind not in (AccumulationType.MEAN, AccumulationType.RUNNING_MEAN):
        return x
    if kind is AccumulationType.MEAN:
        weight = None if weights is None else weights.total
    else:
        weight = jnp.float32(last) if weights is None else weights.upto(last)
    return weighted_mean(x, weight, axis_name)[0]


def _way(kind, struct, count, name, weights):
    """The accumulator for a result of this shape."""
    if isinstance(kind, Accumulator):
        return kind
    _check_kind(kind, struct, name)
    if kind is AccumulationType.CONCAT:
        return _concat(struct, count)
    # Booleans and integers keep their dtype; narrow floats are rounded at the end.
    is_inexact = jnp.issubdtype(struct.dtype, jnp.inexact)
    wide = upcast if is_inexact else jnp.asarray

    def finish(x):
        if kind is AccumulationType.MEAN:
            x = x / max(count, 1) if weights is None else weights.of_all(x)
        return x.astype(struct.dtype)

    def add(total, x, i):
        x = wide(x) if weights is None else weights.term(wide(x), i)
        return total | x if struct.dtype == bool else total + x

    def mix(mean, x, i):
        x = wide(x)
        if weights is not None:
            return weights.mix(mean, x, i)
        return mean + (x - mean) / (i + 1).astype(x.real.dtype)

    def reduce(xs):  # over the examples of a microbatch
        if kind is AccumulationType.SUM and xs.dtype == bool:
            return jnp.any(xs, axis=0)
        total = jnp.sum(xs, axis=0, dtype=xs.dtype)
        return total if kind is AccumulationType.SUM else total / max(len(xs), 1)

    init = lambda s: wide(mb.zeros(s.shape, s))
    update = mix if kind is AccumulationType.RUNNING_MEAN else add
    return Accumulator(init, update, finish, reduce)


def _check_kind(kind, struct, name):
    if not isinstance(kind, AccumulationType):
        raise ValueError(
            f"`accumulator` is {kind!r} for the result at {name}, expected an "
            "`AccumulationType` or an `Accumulator`"
        )
    is_mean = kind in (AccumulationType.MEAN, AccumulationType.RUNNING_MEAN)
    if is_mean and not jnp.issubdtype(struct.dtype, jnp.inexact):
        raise ValueError(
            f"the result at {name} is of dtype {struct.dtype}, which has no "
            f"{kind.name}; return floating-point arrays"
        )


def _concat(struct, count):
    """Concatenate the rows of microbatches in the order of the batch."""
    at = min(len(struct.shape), 1)  # position of the microbatch axis; 0 for scalars

    def init(s):
        return mb.zeros((*s.shape[:at], count, *s.shape[at:]), s, at)

    def update(rows, x, i):
        return jax.lax.dynamic_update_index_in_dim(rows, x.astype(rows.dtype), i, at)

    def finish(rows):
        n = struct.shape[0] if struct.shape else 1
        return rows.reshape(count * n, *struct.shape[1:])

    return Accumulator(init, update, finish, lambda x: x)
