"""What rules read: for each parameter, the stages that change its update, in order."""

import functools as ft
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .._engine import rules as rx
from .._engine.arrays.stacked import one_of
from .._engine.factories.arguments import Arguments
from .._engine.factories.scheduled import StatefulSchedule, WrappedSchedule, values_of
from .._engine.inspect import Component, open_components
from .._optimizers import matrices
from .._optimizers.muon import MuonDimensionNumbers
from .rates import Curve, Rate, rates
from .stages import (
    COMPLETE,
    COUNTS,
    Place,
    Stage,
    Track,
    is_injection,
    kind_of,
    value_of,
)


# Kinds that call others to measure something, or to transform it before they divide.
_TRANSFORMING = (*COMPLETE, "transform", "measure")


class View:
    """A transformation as rules see it; `diagnose.py` names the lists they go over.

    parts: its components; their states hold abstract arrays, or those of a given state.
    shapes: the tree of the parameters, without values.
    paths: those of its leaves; "" for what is not an array.
    tracks: the parameters by the stages that change them.
    integers: those of integers, likewise.
    steps: how many calls of `update` the run will have; 1 if unknown.
    given: the gradients that were given.
    trials: the parameters in a trial step, if one was taken.
    """

    steps: int = 1
    given: Any = None
    trials: Sequence = ()

    def __init__(self, component: Component, gradients: rx.Gradients):
        tree, self._gradients = gradients.updates, gradients
        self.parts, self.whole = list(component.walk()), [self]
        self.shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree
        )
        leaves = jax.tree.leaves(self.shapes, is_leaf=rx.is_none)
        rows = zip(rx.selection.leaf_names(tree), leaves, strict=True)
        self.paths = ["" if x is None else "/".join(names) for names, x in rows]
        seen: list[list[Stage]] = [[] for _ in leaves]
        for stage, indices in self._stages(component, None, ()):
            axes = stage.part.scope.axes if stage.part.scope is not None else None
            for i in indices:
                seen[i].append(stage)
                if axes and len(leaves[i].shape) == len(
                    self._gradients.leaves[i].shape
                ):
                    leaves[i] = one_of(leaves[i], axes[i])
        found: dict[tuple, dict] = {}
        for stages, path, x in zip(seen, self.paths, leaves, strict=True):
            if x is not None:
                is_float = jnp.issubdtype(x.dtype, jnp.inexact)
                found.setdefault((is_float, *stages), {})[path] = x
        tracks = [(k[0], Track(k[1:], xs)) for k, xs in found.items()]
        self.tracks = [track for is_float, track in tracks if is_float]
        self.integers = [track for is_float, track in tracks if not is_float]

    @ft.cached_property
    def places(self) -> list[Place]:
        return [
            Place(x, x.stages[:n], stage, x.stages[n + 1 :], self._taken(stage, x))
            for x in self.tracks
            for n, stage in enumerate(x.stages)
        ]

    @ft.cached_property
    def rates(self) -> list[Rate]:
        return list(rates(self.places))

    @ft.cached_property
    def curves(self) -> list[Curve]:
        """The course of each in the run, if it is known."""
        return [x for rate in self.rates if (x := rate.within(self.steps))]

    def _taken(self, stage: Stage, track: Track) -> tuple[str, ...]:
        """The paths of a track that a stage takes as matrices, and orthogonalizes."""
        given, what = stage.given, "weight_dimension_numbers"
        is_other = not given.get("norm", "spectral").startswith("spectral")
        if "orthogonalizes" not in stage.traits or is_other:
            return ()
        taken = {path for path, x in track.leaves.items() if len(x.shape) > 1}
        if stage.name == "scale_by_muon":  # others raise for what they do not take
            tree = self._gradients.outline(stage.part.scope)
            axes = matrices.resolve(given[what], tree, MuonDimensionNumbers, what)
            reached = stage.part.reached(self._gradients.leaves)
            taken &= {self.paths[i] for i, on in zip(reached, axes, strict=True) if on}
        return tuple(path for path in track.leaves if path in taken)

    def _stages(self, part, owner, around) -> Iterator[tuple[Stage, list[int]]]:
        """The stages of a part, in order, and the indices of what they change."""
        owner = part if owner is None and kind_of(part) in COMPLETE else owner
        inner, node = self._inner(part), rx.node_of(part.tx)
        for below in inner:
            yield from self._stages(below, owner, (*around, part))
        if inner or (isinstance(node, rx.Composite) and not node.members):
            return  # it is what it is made of, or the identity
        varied = node.varied if isinstance(node, rx.Rule) else None
        within = part.reached(self._gradients.leaves)
        tree = self._gradients.outline(part.scope)
        labels = varied.labels(tree) if varied else [None] * len(within)
        found: dict[Any, list[int]] = {}
        for i, label in zip(within, labels, strict=True):
            if self._gradients.leaves[i] is not None:
                found.setdefault(label, []).append(i)
        for label, indices in found.items():
            rule = node.for_label(label) if isinstance(node, rx.Rule) else node
            call = _call(rule, part)
            yield Stage(part, call, varied is not None, owner, around), indices

    def _inner(self, part: Component) -> list[Component]:
        """The components that change updates in place of this one."""
        if isinstance(rx.node_of(part.tx), rx.Composite):
            return part.parts
        name, is_own = part.name, kind_of(part) in _TRANSFORMING
        passes_on = (
            name == "scale_by_galore" if is_own else name != "scale_by_curvature"
        )
        if not part.parts or not passes_on:
            return []
        made = self._with_values(part) if is_injection(part) else None
        # Others that it calls see something else than the gradients.
        return part.parts[:1] if made is None else [made]

    def _with_values(self, part: Component) -> Component | None:
        """What a part injects into, with schedules and the values in the state."""
        given = part.call.bound.arguments
        call = Arguments(given["inner_factory"], given["args"], given["kwargs"])
        numbers, functions = call.sort({*given["static"], *call.unused_additions()})
        kept = part.state.hyperparams if part.state else {}
        values = {
            k: value_of(kept.get(k), otherwise=value_of(x, otherwise=x))
            for k, x in numbers.items()
        }
        for kind in (_plain, _typical):  # one that the factory takes, or a number
            try:
                made = call.again(values | {k: kind(f) for k, f in functions.items()})
            except Exception:
                continue
            path = part.parts[0].path
            return open_components(made, None, self._gradients, part.scope, path)
        return None


def _call(rule: Any, part: Component) -> rx.Call | None:
    """The call that made a rule or closure, if it is known."""
    if isinstance(rule, rx.Rule) and rule.origin is not None:
        return rule.origin
    # The members of a composite without parts are not known.
    return None if isinstance(rule, rx.Composite) else part.call


def _plain(f: Any) -> Any:
    """A schedule as a function of the count."""
    if isinstance(f, StatefulSchedule) and not isinstance(f, WrappedSchedule):
        raise TypeError("its values depend on what it has seen")
    return f.schedule_fn if isinstance(f, WrappedSchedule) else f


def _typical(f: Any) -> float:
    """The largest value of a schedule, whatever its sign."""
    return float(max(values_of(_plain(f), COUNTS), key=abs))
