"""What rules read: for each parameter, the parts that change its update, in order.

Most parameters are treated alike.  Those that the same parts change, with the same
arguments, are one track, so that a rule looks at each kind of treatment once.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .._engine.base.protocol import is_none
from .._engine.factories.arguments import Call
from .._engine.factories.registry import ROWS
from .._engine.factories.scheduled import StatefulSchedule, WrappedSchedule
from .._engine.inspect.components import Component, open_components
from .._engine.inspect.names import part_name
from .._engine.step.gradients import Gradients
from .._engine.step.plan import Composite, node_of
from .._engine.step.rule import Rule
from .._engine.trees import selection
from .._engine.trees.paths import join
from .._optimizers import matrices
from .._optimizers.muon import MuonDimensionNumbers
from .._wrappers import accumulate, inject


# Wrappers that return the rules they are given, with slots that are stored otherwise.
_REWRITING = ("low_bit_states", "with_state_dtypes", "rowwise")
# From the first steps to more than any run has.
COUNTS = (0, *dict.fromkeys(int(10 ** (n / 3)) for n in range(28)))


class Leaf(NamedTuple):
    """A parameter."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def path(self) -> str:
        return "/".join(self.names)

    @property
    def is_float(self) -> bool:
        return jnp.issubdtype(self.dtype, jnp.inexact)


@dataclass(frozen=True, eq=False)
class Stage:
    """A part that changes updates, with its arguments for some parameters.

    name, given: the factory that made it and its arguments; "" if it is not one of
        Stepax, so that nothing is known of what it does.
    is_varied: whether its arguments differ by path.
    owner: the optimizer of the registry that contains it, or that it is.
    around: the components that contain it, outermost first.
    """

    part: Component
    name: str
    given: Mapping[str, Any]
    is_varied: bool
    owner: Component | None
    around: tuple[Component, ...]

    def __str__(self) -> str:
        of = (
            f" of `{name_of(self.owner)}`"
            if self.owner not in (None, self.part)
            else ""
        )
        return f"`{part_name(self.part)}`{of}"


class Track(NamedTuple):
    """Parameters that the same stages change, in this order."""

    stages: tuple[Stage, ...]
    leaves: tuple[Leaf, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(leaf.path for leaf in self.leaves)


@dataclass
class View:
    """A transformation as rules see it.

    parts: its components, with abstract arrays in their states.
    leaves: the parameters; `None` for what is not an array.
    tree: the parameters' shapes.
    states: the states in a given one, by the identity of their components.
    tracks: the parameters by the stages that change them.
    steps: how many calls of `update` the run will have; 1 if unknown.
    """

    parts: list[Component]
    leaves: list[Leaf | None]
    tree: Any
    states: Mapping[int, Any]
    tracks: list[Track]
    steps: int = 1

    def placed(self) -> Iterator[tuple[Track, tuple, Stage, tuple]]:
        """Each stage of each track, between those before and those after it."""
        for track in self.tracks:
            for n, stage in enumerate(track.stages):
                yield track, track.stages[:n], stage, track.stages[n + 1 :]

    def is_matrix(self, spec: Any, leaf: Leaf) -> bool:
        """Whether dimension numbers name the axes of a parameter."""
        kind, what = MuonDimensionNumbers, "weight_dimension_numbers"
        found = matrices.resolve(spec, self.tree, kind, what)
        return found[self.leaves.index(leaf)] is not None

    def count(self, parts: tuple[Component, ...]) -> int:
        """The steps in the given state, as the innermost of some parts counts them."""
        for part in reversed(parts):
            state = self.states.get(id(part))
            fields = getattr(state, "_fields", ())  # every tuple has a method `count`
            for name in ("count", "step_count", "gradient_step"):
                if name in fields:
                    return int(getattr(state, name))
        return 0


def view_of(component: Component, gradients: Gradients, state: Any = None) -> View:
    """The view of components, while they are examined.

    state: the state from which to read injected hyperparameters and counts.
    """
    tree = gradients.treedef.unflatten(gradients.leaves)
    rows = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_none)[0]
    name = selection.path_names
    leaves = [x if x is None else Leaf(name(at), x.shape, x.dtype) for at, x in rows]
    parts, states = list(component.walk()), {}
    if state is not None:
        known = open_components(component.tx, state).walk()
        states = {id(part): x.state for part, x in zip(parts, known, strict=True)}
    seen: list[list[Stage]] = [[] for _ in leaves]
    for stage, indices in _Reader(gradients, states).stages(component, None, ()):
        for i in indices:
            seen[i].append(stage)
    tracks: dict[tuple[Stage, ...], list[Leaf]] = {}
    for stages, leaf in zip(seen, leaves, strict=True):
        if leaf is not None:
            tracks.setdefault(tuple(stages), []).append(leaf)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)
    found = [Track(stages, tuple(xs)) for stages, xs in tracks.items()]
    return View(parts, leaves, shapes, states, found)


class _Reader:
    """Walks components in the order in which they change updates."""

    def __init__(self, gradients: Gradients, states: Mapping[int, Any]):
        self.gradients, self.states = gradients, states

    def stages(self, part, owner, around) -> Iterator[tuple[Stage, list[int]]]:
        owner = part if owner is None and _kind(part) == "optimizer" else owner
        inner = self._inner(part)
        for below in inner:
            yield from self.stages(below, owner, (*around, part))
        if not inner and not isinstance(node_of(part.tx), Composite):
            for name, given, is_varied, indices in self._calls(part):
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
        state = self.states.get(id(part))
        kept = {} if state is None else state.hyperparams
        values = {k: kept.get(k, x) for k, x in numbers.items()}
        values = {k: value_of(x, otherwise=x) for k, x in values.items()}
        for kind in (_plain, _typical):  # one that the factory takes, or a number
            try:
                made = call.again(values | {k: kind(f) for k, f in functions.items()})
                path = part.parts[0].path
                return open_components(made, None, self.gradients, part.scope, path)
            except Exception:
                continue
        return None

    def _calls(self, part: Component) -> Iterator[tuple[str, Mapping, bool, list[int]]]:
        """The call that made a part, once for all labels of its leaves."""
        leaves = self.gradients.leaves
        pairs = zip(leaves, part.scope or [True] * len(leaves), strict=True)
        kept = [(i, g is not None) for i, (g, on) in enumerate(pairs) if on]
        indices, rule = [i for i, is_array in kept if is_array], node_of(part.tx)
        if not isinstance(rule, Rule) or rule.varied is None:
            yield *_call(rule, part), False, indices
            return
        tree = self.gradients.outline(part.scope)
        found = {x: [] for x in rule.varied.labels(tree)}
        for (i, is_array), label in zip(kept, rule.varied.labels(tree), strict=True):
            found[label] += [i] * is_array
        for label, indices in found.items():
            yield *_call(rule.for_label(label), part), True, indices


def _call(rule: Any, part: Component) -> tuple[str, Mapping[str, Any]]:
    """The factory of a rule or closure and its arguments, if it is one of Stepax."""
    if isinstance(rule, Rule) and rule.origin is not None:
        is_ours = rule.origin.build.__module__.startswith("stepax.")
        return (rule.name, dict(rule.origin.bound.arguments)) if is_ours else ("", {})
    name = name_of(part)
    return name, dict(part.recipe.bound.arguments) if name else {}


def name_of(part: Component | None) -> str:
    """The factory that made a part; "" if it is not one of Stepax."""
    if part is None or part.recipe is None:
        return ""
    build = part.recipe.build
    return build.__name__ if build.__module__.startswith("stepax.") else ""


def where(part: Component) -> tuple[str]:
    """The path of a part in the state, or its name if it is the whole."""
    return (join(part.path) or name_of(part) or part_name(part),)


def _kind(part: Component) -> str:
    """The kind of a factory in the registry; that of what a wrapper rewrites."""
    recipe = part.recipe
    while recipe is not None and recipe.build.__name__ in _REWRITING:
        recipe = getattr(recipe.bound.arguments["inner"], "recipe", None)
    row = ROWS.get(recipe.build.__name__) if recipe else None
    return row.kind if row and recipe and row.factory is recipe.factory else ""


def _passes_on(part: Component) -> bool:
    """Whether a closure changes updates by the first transformation that it calls."""
    # Those of other kinds measure something, or transform it before they divide by it.
    if _kind(part) in ("optimizer", "transform", "measure"):
        return name_of(part) == "scale_by_galore"
    return name_of(part) != "scale_by_curvature"


def is_injection(part: Component) -> bool:
    """Whether a part is what `inject_hyperparams` makes."""
    return part.recipe is not None and part.recipe.factory is inject._injected


def accumulated(part: Component) -> int | None:
    """How many calls an accumulation takes for a step; 0 if unknown, `None` if none."""
    made = part.recipe
    if made is not None and made.factory is accumulate._pair:
        made = made.bound.arguments["multi_steps"].recipe
    if made is not None and made.build is accumulate.MultiSteps:
        every = made.bound.arguments["every_k_schedule"]
        return value_of(every(0) if callable(every) else every, otherwise=0)
    return 0 if made is None and hasattr(part.tx, "inner_opt") else None


def value_of(x: Any, otherwise: Any = None) -> Any:
    """A scalar as a Python number, if it is known."""
    if isinstance(x, bool | int | float):
        return x
    is_array = isinstance(x, np.ndarray | np.generic | jax.Array)
    if not is_array or isinstance(x, Tracer) or np.ndim(x) or np.iscomplexobj(x):
        return otherwise
    return np.asarray(x).item()


def _plain(f: Any) -> Any:
    """A schedule as a function of the count."""
    if isinstance(f, StatefulSchedule) and not isinstance(f, WrappedSchedule):
        raise TypeError("its values depend on what it has seen")
    return f.schedule_fn if isinstance(f, WrappedSchedule) else f


def _typical(f: Any) -> float:
    """The largest value of a schedule; an error if its sign changes."""
    values = sampled(_plain(f), COUNTS)
    if values is None or values.min() < 0 < values.max():
        raise ValueError("its values have different signs")
    return float(values[np.abs(values).argmax()])


def sampled(schedule: Callable, counts: Any) -> np.ndarray | None:
    """The values of a schedule after some numbers of steps, if it has any."""
    try:
        return np.asarray(jax.vmap(schedule)(jnp.asarray(counts, jnp.int32)), float)
    except Exception:  # it branches on the count, or is not of JAX
        pass
    try:
        return np.asarray([np.asarray(schedule(int(t))) for t in counts], float)
    except Exception:
        return None
