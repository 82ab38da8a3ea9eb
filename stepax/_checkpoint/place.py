"""Templates of parameters and states: shapes, dtypes and shardings.

States whose classes change after `init` are restored as they were saved.  The first
weight makes a `WeightedMultiStepsState` of a `MultiStepsState`, and `swap_averages`
puts a `SwappedAverage` in the place of an average.
"""

import functools as ft
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, SingleDeviceSharding

from .._distributed import init_shapes, init_sharded, init_shardings, state_sharding
from .._engine import rules as rx
from .._engine.arrays.placement import mesh_sharding, put_on, sharding_of
from .._engine.base import ArrayTree, GradientTransformation, Params, partition_arrays
from .._engine.trees.pack import pack, unpack
from .._engine.trees.search import rebuilt
from .._wrappers.accumulate import MultiStepsState, WeightedMultiStepsState, with_weight
from .._wrappers.averages import AverageState, SwappedAverage
from . import Entry, arrays_of, entries, labels_of, where_of
from .values import JAX, kind_of, require_numbers, restored, traceable


class Template(NamedTuple):
    """A tree to be filled.

    tree: the requested tree, of arrays or their shapes.
    entries: entries of its arrays, unpacked.
    shardings: shardings of the array leaves; `None` for JAX's default device.
    is_made: whether `tree` comes from `jax.eval_shape` rather than from the caller.
    """

    tree: ArrayTree
    entries: list[Entry]
    shardings: list[Any]
    is_made: bool = False

    @property
    def targets(self) -> list[Any]:
        """The sharding to read each entry to; `None` to read to the host first."""
        if len(self.shardings) != len(self.entries) or rx.holds_packed(self.tree):
            return [None] * len(self.entries)
        pairs = zip(self.shardings, self.entries, strict=True)
        return [
            s if isinstance(s, NamedSharding) and not x.key_kind else None
            for s, x in pairs
        ]

    def fill(self, values: list, kinds: list[str | None]) -> Any:
        """The tree with these arrays, in its dtypes and shardings.

        kinds: their libraries when saved, see `kind_of`; `None` for fresh values.
        """
        shapes, rebuild = partition_arrays(unpack(self.tree))
        if any(
            jnp.shape(x) != y.shape for x, y in zip(values, self.entries, strict=True)
        ):
            # An earlier version, or another `block`, may use different blocks.
            tree = rx.stored_like(rebuild(values), unpack(self.tree))
            values = partition_arrays(tree)[0]
        rows = zip(self.entries, shapes, values, kinds, strict=True)
        tree = rebuild([restored(*row, self.is_made) for row in rows])
        if rx.holds_packed(self.tree):
            tree = pack(tree, like=self.tree)
        arrays, rebuild = partition_arrays(tree)
        pairs = zip(arrays, self.shardings, strict=True)
        # Values that JAX cannot hold stay on the host.
        return rebuild(
            x if s is None or kind_of(x) != JAX else put_on(x, s) for x, s in pairs
        )


def template_of_params(params: Params) -> Template:
    """The template of these parameters, or of shapes with or without a sharding."""
    found = arrays_of(params)
    for entry, x in found:
        require_numbers(entry.key, x)
    shardings = [sharding_of(x) for x in partition_arrays(params)[0]]
    shardings = [None if _is_usual(s) else s for s in shardings]
    return Template(params, [entry for entry, _ in found], shardings)


def _is_usual(sharding: Any) -> bool:
    """Whether this is the default placement of an uncommitted array."""
    is_single = isinstance(sharding, SingleDeviceSharding)
    return is_single and sharding.device_set == {jnp.zeros(()).device}


def template_of_state(tx: Any, params: Params) -> Template:
    """The template of the state of `tx` for parameters like these."""
    params = traceable(params)
    given = tx.init
    tx = GradientTransformation(lambda params: traceable(given(params)), tx.update)
    shapes = init_shapes(tx, params)
    wanted: list[Any] = [None] * len(partition_arrays(shapes)[0])
    if mesh_sharding(params) is not None:
        # `zero` and `offload` set the sharding of the state in `init`.
        both = state_sharding(tx, params), init_shardings(tx, params)
        rows = zip(*map(jax.tree.leaves, (shapes, *both)), strict=True)
        wanted = [_smaller(x.shape, *pair) for x, *pair in rows]
    return Template(shapes, entries(shapes), wanted, is_made=True)


def first_state(tx: Any, params: Params) -> Any:
    return init_sharded(tx, params) if mesh_sharding(params) else tx.init(params)


def _smaller(shape: tuple, beside: Any, made: Any) -> Any:
    """The sharding derived from the parameters, or that of `init` if it is finer."""
    if not isinstance(made, NamedSharding):
        return beside
    found = min(beside, made, key=lambda s: math.prod(s.shard_shape(shape)))
    kind = made.memory_kind
    return found if kind is None else found.with_memory_kind(kind)


# Classes with the fields of another one, under whose name they are matched.
AS = {WeightedMultiStepsState.__name__: MultiStepsState.__name__}


def is_weight(x: Entry) -> bool:
    """Whether this is the sum of weights, which is 0 in a state without one."""
    return x.owner in AS and x.own == ("weight",)


def in_form_of(saved: list[Entry], tx: Any, params: list[Entry]) -> Any:
    """`tx`, whose `init` makes the classes that were saved, where they may change."""
    paths = {x.names for x in params}
    swapped = {
        x.labels
        for x in saved
        if x.owner == AverageState.__name__
        and x.own[:2] == ("average", "average")
        and not paths.isdisjoint((x.own[2:], x.own[2:-1]))  # or an array's halves
    }
    weighted = {x.where for x in saved if is_weight(x)}
    plain = {x.where for x in saved if x.own == ("mini_step",)} - weighted
    if not (swapped or weighted):
        return tx

    def init(params: Params) -> ArrayTree:
        def changed(path: tuple, x: Any) -> Any:
            if isinstance(x, AverageState):
                is_swapped = labels_of(where_of(path)) in swapped
                held = SwappedAverage(x.average, params) if is_swapped else x.average
                return x._replace(average=held)
            return with_weight(x) if weighted and where_of(path) not in plain else x

        state = tx.init(params)
        kinds = MultiStepsState.__name__, AverageState.__name__
        found = [
            path for kind in kinds for path, _ in rx.get_all_with_path(state, kind)
        ]
        # The innermost first, as the paths below have the names of these classes.
        for path in sorted(found, key=len, reverse=True):
            state = rebuilt(state, {path: ft.partial(changed, path)})
        return state

    return GradientTransformation(init, tx.update)
