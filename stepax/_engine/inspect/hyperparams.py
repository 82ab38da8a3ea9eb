"""The hyperparameters of a transformation, read from its state.

This costs a step nothing: injected hyperparameters are stored in the state anyway, and
the value of a schedule follows from the step count.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from .. import rules as rx
from ..factories.argument_checks import entry
from ..factories.arguments import Call
from ..factories.by_path import is_same
from ..trees.paths import join
from ..trees.search import open_node
from . import Component, open_components


@dataclass(frozen=True)
class Value:
    """A hyperparameter.

    kind: "injected" can be changed in the state, "scheduled" follows a schedule, and
        "fixed" was set when the transformation was made.
    """

    value: Any
    kind: str


@rx.explain_misuse
def hyperparams(tx: rx.GradientTransformation, state: rx.OptState) -> dict[str, Any]:
    """The hyperparameters of all parts of a transformation at the last step.

    Injected hyperparameters are read from the state.  Those with a schedule follow from
    its step count: the values that the last step used or, before any step, those that
    the first one will use.  All others have the values that the parts were made with.
    This also works under `jit`.

    tx: the transformation.
    state: its state.

    Returns a dict from paths to values; a path is that of a part in the state followed
    by the name of its argument, as in "1/0/b1".
    """
    rx.require_transformation(tx, "`tx` of `hyperparams`")
    return {path: x.value for path, x in all_values(open_components(tx, state)).items()}


def all_values(component: Component) -> dict[str, Value]:
    """The hyperparameters of all parts, by their paths."""
    return {join(path): x for path, x in _all(component, frozenset())}


def _all(component: Component, known: frozenset) -> Iterator[tuple[tuple, Value]]:
    """known: names that an outer component injects, in place of its own arguments."""
    injected = list(
        _injected(component.state, component.path, whole=not component.parts)
    )
    yield from injected
    if component.is_leaf and not injected:
        for name, x in _own(component):
            if name not in known:
                yield (*component.path, name), x
    known |= {path[-1] for path, _ in injected}
    for part in component.parts:
        yield from _all(part, known)


def _injected(state: Any, path: tuple, whole: bool) -> Iterator[tuple[tuple, Value]]:
    """whole: whether to look for them inside of the state, too."""
    fields = _fields(state)
    found = fields.get("hyperparams")
    if isinstance(found, Mapping):
        scheduled = fields.get("hyperparams_states", ())
        for name, x in found.items():
            kind = "scheduled" if name in scheduled else "injected"
            yield (*path, "hyperparams", name), Value(x, kind)
    if whole:
        for key, x in open_node(state)[0]:
            yield from _injected(x, (*path, key), whole)


def _own(component: Component) -> Iterator[tuple[str, Value]]:
    """The arguments of its factory; those that differ by path once for each call."""
    node = rx.node_of(component.tx)
    varied = node.varied if isinstance(node, rx.Rule) else None
    if varied is None or not varied.calls:
        yield from _arguments(component.recipe, component.state)
        return
    rows = {k: dict(_arguments(x, component.state)) for k, x in varied.calls.items()}
    first = next(iter(rows.values()))
    for name, x in first.items():
        if all(is_same(x.value, row[name].value) for row in rows.values()):
            yield name, x
            continue
        for pattern, row in rows.items():
            yield entry(name, pattern), row[name]


def _arguments(recipe: Any, state: Any) -> Iterator[tuple[str, Value]]:
    if recipe is None:
        return
    call = recipe.bound
    numbers, schedules = Call(recipe.factory, call.args, call.kwargs).sort(())
    for name, x in numbers.items():
        yield name, Value(x, "fixed")
    parameters = call.signature.parameters
    given = call.arguments.items()
    schedules |= {k: f for k, f in given if parameters[k].annotation == rx.Schedule}
    fields = _fields(state)
    steps = fields.get("count", fields.get("step_count"))
    for name, schedule in schedules.items():
        # At the last step; of a first one if there was none.
        value = None if steps is None else schedule(jnp.maximum(steps - 1, 0))
        yield name, Value(value, "scheduled")


def _fields(state: Any) -> dict[str, Any]:
    """The fields of a named tuple, by name; none of anything else."""
    return {} if rx.errors.fields_of(state) is None else state._asdict()
