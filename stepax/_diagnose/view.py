"""What rules read: for each parameter, the stages that change its update, in order."""

import functools as ft
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._engine.factories.arguments import Call
from .._engine.factories.scheduled import StatefulSchedule, WrappedSchedule, values_of
from .._engine.inspect.components import Component, open_components
from .._engine.step.gradients import Gradients
from .._engine.step.plan import Composite, node_of
from .._engine.step.rule import Rule
from .._engine.trees import selection
from .._optimizers import matrices
from .._optimizers.muon import MuonDimensionNumbers
from .curves import Curve, Rate, rates
from .stages import (
    COUNTS,
    Leaf,
    Place,
    Stage,
    Track,
    is_injection,
    kind_of,
    name_of,
    value_of,
)


_ORTHOGONALIZING = (
    *("scale_by_muon", "scale_by_dion", "scale_by_dion2", "scale_by_normuon"),
    *("muown", "_scion_direction"),
)


@dataclass
class View:
    """A transformation as rules see it; `table.py` names the lists that they go over.

    parts: its components, with abstract arrays in their states.
    leaves: the parameters; `None` for what is not an array.
    shapes: the tree of their shapes.
    states: the states in a given one, by the identity of their components.
    tracks: the parameters by the stages that change them.
    integers: those of integers, likewise.
    steps: how many calls of `update` the run will have; 1 if unknown.
    gradients: the tree that was given.
    trials: the trial step, if it was taken.
    """

    parts: list[Component]
    leaves: list[Leaf | None]
    shapes: Any
    states: Mapping[int, Any]
    tracks: list[Track] = field(default_factory=list)
    integers: list[Track] = field(default_factory=list)
    steps: int = 1
    gradients: Any = None
    trials: list = field(default_factory=list)

    @property
    def whole(self) -> "list[View]":
        """For rules that read all of it."""
        return [self]

    @ft.cached_property
    def places(self) -> list[Place]:
        """Each stage of each track."""
        return [
            Place(x, x.stages[:n], stage, x.stages[n + 1 :], self._taken(stage, x))
            for x in self.tracks
            for n, stage in enumerate(x.stages)
        ]

    @ft.cached_property
    def rates(self) -> list[Rate]:
        """The learning rates with a schedule."""
        return list(rates(self.places, self.states))

    @ft.cached_property
    def curves(self) -> list[Curve]:
        """The course of each in the run, if it is known."""
        found = (rate.within(self.steps) for rate in self.rates)
        return [curve for curve in found if curve is not None]

    def _taken(self, stage: Stage, track: Track) -> tuple[str, ...]:
        given, what = stage.given, "weight_dimension_numbers"
        is_other = not given.get("norm", "spectral").startswith("spectral")
        if stage.name not in _ORTHOGONALIZING or is_other:
            return ()
        taken = {x for x in track.leaves if len(x.shape) > 1}
        if stage.name == "scale_by_muon":  # others raise for what they do not take
            axes = matrices.resolve(
                given[what], self.shapes, MuonDimensionNumbers, what
            )
            taken &= {x for x, on in zip(self.leaves, axes, strict=True) if x and on}
        return tuple(x.path for x in track.leaves if x in taken)


def view_of(component: Component, gradients: Gradients, state: Any = None) -> View:
    """The view of components, while they are examined.

    state: the state from which to read injected hyperparameters and counts.
    """
    tree, parts, states = gradients.updates, list(component.walk()), {}
    rows = zip(selection.leaf_names(tree), gradients.leaves, strict=True)
    leaves = [x if x is None else Leaf("/".join(k), x.shape, x.dtype) for k, x in rows]
    if state is not None:
        known = open_components(component.tx, state).walk()
        states = {id(part): x.state for part, x in zip(parts, known, strict=True)}
    seen: list[list[Stage]] = [[] for _ in leaves]
    for stage, indices in _Reader(gradients, states).stages(component, None, ()):
        for i in indices:
            seen[i].append(stage)
    tracks: dict[tuple, list[Leaf]] = {}
    for stages, leaf in zip(seen, leaves, strict=True):
        if leaf is not None:
            is_float = jnp.issubdtype(leaf.dtype, jnp.inexact)
            tracks.setdefault((is_float, *stages), []).append(leaf)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)
    view = View(parts, leaves, shapes, states)
    for (is_float, *stages), found in tracks.items():
        kind = view.tracks if is_float else view.integers
        kind.append(Track(tuple(stages), tuple(found)))
    return view


class _Reader(NamedTuple):
    """Walks components in the order in which they change updates."""

    gradients: Gradients
    states: Mapping[int, Any]

    def stages(self, part, owner, around) -> Iterator[tuple[Stage, list[int]]]:
        owner = part if owner is None and kind_of(part) == "optimizer" else owner
        inner, node = self._inner(part), node_of(part.tx)
        for below in inner:
            yield from self.stages(below, owner, (*around, part))
        is_identity = isinstance(node, Composite) and not node.members
        for rule, is_varied, indices in (
            () if inner or is_identity else self._rules(part)
        ):
            name, given = _call(rule, part)
            yield Stage(part, name, given, is_varied, owner, around), indices

    def _inner(self, part: Component) -> list[Component]:
        """The components that change updates in place of this one."""
        if isinstance(node_of(part.tx), Composite):
            return part.parts
        if not part.parts or not _passes_on(part):
            return []
        made = self._with_values(part) if is_injection(part) else None
        # Others that it calls see something else than the gradients.
        return part.parts[:1] if made is None else [made]

    def _with_values(self, part: Component) -> Component | None:
        """What a part injects into, with schedules and the values in the state."""
        given = part.recipe.bound.arguments
        call = Call(given["inner_factory"], given["args"], given["kwargs"])
        numbers, functions = call.sort({*given["static"], *call.unused_additions()})
        kept = getattr(self.states.get(id(part)), "hyperparams", {})
        values = {k: value_of(kept.get(k, x), otherwise=x) for k, x in numbers.items()}
        for kind in (_plain, _typical):  # one that the factory takes, or a number
            try:
                made = call.again(values | {k: kind(f) for k, f in functions.items()})
            except Exception:
                continue
            path = part.parts[0].path
            return open_components(made, None, self.gradients, part.scope, path)
        return None

    def _rules(self, part: Component) -> Iterator[tuple[Any, bool, list[int]]]:
        """What changes updates, for all parameters or for some, and their indices."""
        rule, leaves = node_of(part.tx), self.gradients.leaves
        within = part.reached(leaves)
        varied = rule.varied if isinstance(rule, Rule) else None
        tree = self.gradients.outline(part.scope)
        labels = varied.labels(tree) if varied else [None] * len(within)
        found: dict[Any, list[int]] = {}
        for i, label in zip(within, labels, strict=True):
            if leaves[i] is not None:
                found.setdefault(label, []).append(i)
        for label, indices in found.items():
            own = rule.for_label(label) if isinstance(rule, Rule) else rule
            yield own, varied is not None, indices


def _call(rule: Any, part: Component) -> tuple[str, Mapping[str, Any]]:
    """The factory of a rule or closure and its arguments, if it is one of Stepax."""
    if isinstance(rule, Rule) and rule.origin is not None:
        build = rule.origin.build
        if not build.__module__.startswith("stepax."):
            return "", {}
        # Rules that are chosen by path have no name of their own.
        return rule.name or build.__name__, dict(rule.origin.bound.arguments)
    # The members of a composite without parts are not known.
    name = "" if isinstance(rule, Composite) else name_of(part)
    return name, dict(part.recipe.bound.arguments) if name else {}


def _passes_on(part: Component) -> bool:
    """Whether a closure changes updates by the first transformation that it calls."""
    # Those of other kinds measure something, or transform it before they divide by it.
    if kind_of(part) in ("optimizer", "transform", "measure"):
        return name_of(part) == "scale_by_galore"
    return name_of(part) != "scale_by_curvature"


def _plain(f: Any) -> Any:
    """A schedule as a function of the count."""
    if isinstance(f, StatefulSchedule) and not isinstance(f, WrappedSchedule):
        raise TypeError("its values depend on what it has seen")
    return f.schedule_fn if isinstance(f, WrappedSchedule) else f


def _typical(f: Any) -> float:
    """The largest value of a schedule, whatever its sign."""
    return float(max(values_of(_plain(f), COUNTS), key=abs))
