"""Evaluation of a function on one part of a batch after another, in less memory.

The batch is cut into microbatches; a loop evaluates the function on each and combines
the results as it goes, so that no more than one of them is held.  Microbatch i of n has
the rows i, i + n, i + 2n and so on: a sharding of the batch stays one of each part.

Differences from Optax: a batch may be empty; narrow numbers are added in float32 and
rounded at the end; errors name the argument, its path and the sizes; `micro_vmap` takes
trees of axes; `num_real_microbatches` beyond what there is stops at the end.
"""

import enum
import functools as ft
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from ._engine.arrays.branch import varying
from ._engine.arrays.numerics import upcast
from ._engine.functions.calls import explain_misuse
from ._engine.trees import errors
from ._microbatches import (
    Parts,
    axes_of,
    axis_of,
    count_of,
    cut,
    paths,
    place,
    positional,
    spread,
)
from ._names import attributes


__all__ = [
    "AccumulationType", "Accumulator", "Aux", "micro_grad", "micro_vmap", "microbatch",
    "reshape_batch_axis",
]  # fmt: skip

if not TYPE_CHECKING:
    __dir__, __getattr__ = attributes(__name__)


class AccumulationType(enum.Enum):
    """How the results of microbatches are combined.

    MEAN: their sum over the number of all microbatches, evaluated or not.
    SUM: their sum; of booleans, whether any holds.
    RUNNING_MEAN: the mean of those that are evaluated.
    CONCAT: row by row in the order of the batch; numbers become a vector.
    """

    MEAN = 1
    SUM = 2
    RUNNING_MEAN = 3
    CONCAT = 4


@dataclass(frozen=True)
class Accumulator:
    """A way of one's own to combine the results of microbatches, for one array.

    init: from the shape and dtype of one result to the first carry.
    update: (carry, result, index) -> carry.
    finalize: from the last carry to what is returned.
    aggregate: from results stacked by example to that of a microbatch; `micro_vmap`.
    """

    init: Callable[[Any], Any]
    update: Callable[[Any, Any, Any], Any]
    finalize: Callable[[Any], Any]
    aggregate: Callable[[Any], Any]


class Aux(NamedTuple):
    """What `micro_grad` returns beside gradients, each with an axis of examples.

    values: of the function.  metrics: of the gradients.  aux: what else it returned.
    """

    values: Any
    metrics: Any
    aux: Any


@explain_misuse
def reshape_batch_axis(tree: Any, microbatch_size: int, axis: int = 0) -> Any:
    """Cut an axis into two, of microbatches and of the rows in each.

        y[i, k] = x[i + k n],   n microbatches

    tree: a tree of arrays.
    microbatch_size: how many rows each microbatch has, >= 1.
    axis: which axis; negative ones count from the end.

    Raises ValueError if the size does not divide the axis, and names the path.
    """
    leaves, treedef = jax.tree.flatten(tree)

    def one(x, name):
        at = axis_of(x, axis, f"the leaf at {name}")
        count_of(jnp.shape(x)[at], microbatch_size, f"the leaf at {name}")
        return jnp.swapaxes(cut(x, at, microbatch_size), at, at + 1)

    return treedef.unflatten(map(one, leaves, paths(tree)))


@explain_misuse
def microbatch(
    fun: Callable[..., Any],
    argnums: int | Sequence[int],
    microbatch_size: int | None,
    accumulator: Any = AccumulationType.SUM,
    *,
    argnames: str | Sequence[str] = (),
    in_axes: int | Sequence[int] | Mapping[int | str, int] = 0,
    num_real_microbatches: ArrayLike | None = None,
) -> Callable[..., Any]:
    """A function that evaluates `fun` on one microbatch after another.

    fun: from arrays with an axis of examples to a tree of arrays.
    argnums, argnames: the arguments that have a batch axis, by position or name of the
        parameter; a call may give each of them either way.
    microbatch_size: how many rows `fun` sees at a time, a divisor of the batch size;
        `None` for all.
    accumulator: how results are combined; an `AccumulationType`, an `Accumulator`, or
        a tree of them that is a prefix of the result.
    in_axes: the batch axis, of all arguments or of each in `argnums` and `argnames`; a
        dict from these has it for some, others have 0.
    num_real_microbatches: how many microbatches are evaluated, the first ones; all if
        `None`.  It may be traced, but then there is no reverse derivative.

    Returns the function; of an empty batch it makes zeros.  It raises ValueError where
    sizes do not fit, and names the argument and its path.
    """
    numbers = [argnums] if isinstance(argnums, int) else list(argnums)
    names = [argnames] if isinstance(argnames, str) else list(argnames)
    _check_plan(microbatch_size, num_real_microbatches)
    known, ordered = axes_of(numbers, names, in_axes), positional(fun)

    def run(*args, **kwargs):
        places = {place(k, args, kwargs, ordered): axis for k, axis in known.items()}
        if microbatch_size is None:
            return fun(*args, **kwargs)
        parts = Parts(args, kwargs, places, microbatch_size)
        return _loop(fun, parts, accumulator, num_real_microbatches)

    return run


@explain_misuse
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
    """`jax.vmap`, on one microbatch after another.

    fun: a function of one example, to a tree of arrays.
    in_axes: as for `jax.vmap`; keywords are mapped along their first axis.
    out_axes: 0.
    microbatch_size: how many examples are mapped at a time; `None` for all.
    vmap_fn: used in place of `jax.vmap`.
    accumulator: how results are combined; see `microbatch`.
    num_real_microbatches: how many are evaluated, the first ones; all if `None`.

    Raises ValueError for other `out_axes`; the function it returns where sizes do not
    fit.
    """
    if out_axes != 0:
        raise ValueError(f"`out_axes` is {out_axes}, expected 0")
    _check_plan(microbatch_size, num_real_microbatches)
    mapped = vmap_fn(fun, in_axes=in_axes, out_axes=0)

    def aggregated(*args, **kwargs):
        found = mapped(*args, **kwargs)
        kinds = _broadcast(accumulator, found)
        names, (leaves, treedef) = paths(found), jax.tree.flatten(found)
        each = zip(kinds, leaves, names, strict=True)
        return treedef.unflatten(_aggregate(k, x, name) for k, x, name in each)

    def run(*args, **kwargs):
        if microbatch_size is None:
            return aggregated(*args, **kwargs)
        several = isinstance(in_axes, tuple | list)
        axes = tuple(in_axes) if several else (in_axes,) * len(args)
        if len(axes) != len(args):
            raise ValueError(
                f"`in_axes` has {len(axes)} axes, expected {len(args)}, one for each "
                "argument"
            )
        places = {**dict(enumerate(axes)), **dict.fromkeys(kwargs, 0)}
        parts = Parts(args, kwargs, places, microbatch_size)
        return _loop(aggregated, parts, accumulator, num_real_microbatches)

    return run


@explain_misuse
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
    """Gradients of each example, transformed and combined.

        Σ transform_fn(∇ fun(params, example))   over examples, or what `accumulator` is

    fun: returns a number.
    has_aux: whether `fun` returns a pair of that and something else.
    argnums: the arguments to differentiate in.
    batch_argnums: the arguments that have a first axis of examples; keywords have one.
    keep_batch_dim: whether `fun` is given batches of one example, or the example.
    transform_fn: of the gradient of each example, such as clipping.
    metrics_fn: of the same, to something small that is returned for each example.
    microbatch_size: how many examples are taken at a time; `None` for all.
    accumulator: how gradients are combined; see `microbatch`.
    num_real_microbatches: how many are evaluated, the first ones; all if `None`.

    Returns a function like `fun`, whose result are the gradients and an `Aux`.
    """
    batched = [batch_argnums] if isinstance(batch_argnums, int) else [*batch_argnums]
    ordered = positional(fun)
    gradient = jax.value_and_grad(fun, argnums, has_aux=has_aux)

    def one(places, *args, **kwargs):
        if keep_batch_dim:
            put = lambda x: jax.tree.map(lambda y: jnp.expand_dims(y, 0), x)
            is_batch = [k in places for k in range(len(args))]
            pairs = zip(args, is_batch, strict=True)
            args = [put(x) if yes else x for x, yes in pairs]
            kwargs = put(kwargs)
        found, g = gradient(*args, **kwargs)
        value, aux = found if has_aux else (found, None)
        return transform_fn(g), Aux(value, metrics_fn(g), aux)

    def run(*args, **kwargs):
        places = {place(k, args, kwargs, ordered) for k in batched}
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


def _broadcast(accumulator, result):
    """The accumulator of each leaf of a result."""
    try:
        return spread(accumulator, result)
    except (ValueError, TypeError):
        reference = "the result"
        raise errors.mismatch("accumulator", accumulator, reference, result) from None


def _loop(fun, parts, accumulator, real):
    def evaluate(call):
        args, kwargs = call
        return jax.tree.map(jnp.asarray, fun(*args, **kwargs))

    types = _types(lambda: evaluate(parts.take(0) if parts.count else parts.like()))
    kinds = _broadcast(accumulator, types)
    structs, treedef = jax.tree.flatten(types)
    each = zip(kinds, structs, paths(types), strict=True)
    ways = [_way(k, s, parts.count, name) for k, s, name in each]

    def step(i, carries):
        values = jax.tree.leaves(evaluate(parts.take(i)))
        each = zip(ways, carries, values, strict=True)
        return [way.update(carry, x, i) for way, carry, x in each]

    carries = [_start(way, s) for way, s in zip(ways, structs, strict=True)]
    if parts.count:
        last = parts.count if real is None else _least(real, parts.count)
        carries = jax.lax.fori_loop(0, last, step, carries)
    results = [way.finalize(x) for way, x in zip(ways, carries, strict=True)]
    return treedef.unflatten(results)


def _types(example):
    """Shapes, dtypes and shardings of what a function returns, without running it."""
    found = []

    def run():
        result = example()
        found.append(jax.tree.map(jax.typeof, result))
        return result

    jax.eval_shape(run)
    return found[-1]


def _zeros(shape, like, axis=None):
    """Zeros that are sharded like a result; a new axis is not sharded."""
    mesh, spec = like.sharding.mesh, [*like.sharding.spec]
    if mesh.empty or not any(spec):
        return jnp.zeros(shape, like.dtype)
    if axis is not None:
        spec.insert(axis, None)
    place = NamedSharding(mesh, PartitionSpec(*spec))
    return jax.sharding.reshard(jnp.zeros(shape, like.dtype), place)


def _least(real, count):
    return min(real, count) if isinstance(real, int) else jnp.minimum(real, count)


def _start(way, struct):
    """The first carry, which inside `shard_map` varies as the results do."""
    axes = (
        tuple(varying(struct)) if jax.sharding.get_abstract_mesh().manual_axes else ()
    )
    vary = lambda x: jax.lax.pcast(jnp.asarray(x), axes, to="varying")
    carry = way.init(struct)
    return jax.tree.map(vary, carry) if axes else carry


def _way(kind, struct, count, name):
    """An accumulator for a result of this shape."""
    if isinstance(kind, Accumulator):
        return kind
    _check_kind(kind, struct, name)
    if kind is AccumulationType.CONCAT:
        return _concat(struct, count)
    # Booleans and integers keep their dtype; narrow numbers are rounded at the end.
    is_inexact = jnp.issubdtype(struct.dtype, jnp.inexact)
    wide = upcast if is_inexact else jnp.asarray
    init = lambda s: wide(_zeros(s.shape, s))
    ends = {AccumulationType.MEAN: max(count, 1)}.get(kind, 1)
    finish = lambda x: (x / ends if ends > 1 else x).astype(struct.dtype)

    def add(total, x, i):
        return total | x if struct.dtype == bool else total + wide(x)

    def mix(mean, x, i):
        x = wide(x)
        return mean + (x - mean) / (i + 1).astype(x.real.dtype)

    update = mix if kind is AccumulationType.RUNNING_MEAN else add
    return Accumulator(init, update, finish, lambda x: x)


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
            f"{kind.name}; return floating-point numbers"
        )


def _concat(struct, count):
    """Rows of microbatches side by side, as they were in the batch."""
    at = min(len(struct.shape), 1)  # of the axis of microbatches; numbers have no rows

    def init(s):
        return _zeros((*s.shape[:at], count, *s.shape[at:]), s, at)

    def update(rows, x, i):
        return jax.lax.dynamic_update_index_in_dim(rows, x.astype(rows.dtype), i, at)

    def finish(rows):
        return rows.reshape(_rows(struct, count), *struct.shape[1:])

    return Accumulator(init, update, finish, lambda x: x)


def _rows(struct, count):
    return count * (struct.shape[0] if struct.shape else 1)


def _aggregate(kind, x, name):
    """What a microbatch makes of the results of its examples."""
    if isinstance(kind, Accumulator):
        return kind.aggregate(x)
    _check_kind(kind, x, name)
    if kind is AccumulationType.CONCAT:
        return x
    if kind is AccumulationType.SUM:
        is_bool = x.dtype == bool
        return jnp.any(x, axis=0) if is_bool else jnp.sum(x, axis=0, dtype=x.dtype)
    return jnp.sum(x, axis=0, dtype=x.dtype) / max(len(x), 1)
