"""The hyperparameters of a transformation at the last step.

They are read from the state, which costs a step nothing: injected ones are stored there
anyway, and the value of a schedule follows from the step count.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import DictKey

from .. import rules as rx
from ..factories.argument_checks import entry
from ..factories.arguments import Arguments
from ..factories.by_path import is_same
from ..trees.errors import list_some
from ..trees.paths import join, open_node
from . import Component, open_components


@dataclass(frozen=True)
class Value:
    """A hyperparameter.

    kind: "injected" can be changed in the state, "scheduled" follows a schedule, and
        "fixed" was set when the transformation was made.
    """

    value: Any
    kind: str


@jax.tree_util.register_pytree_with_keys_class
class Hyperparams(dict[str, Any]):
    """Values by path; a name, as the end of a path, is enough where only one has it."""

    def __missing__(self, name: str) -> Any:
        found = [path for path in self if path.endswith(f"/{name}")]
        if len(found) == 1:
            return self[found[0]]
        alike = difflib.get_close_matches(str(name), self, n=3, cutoff=0.0)
        what = f"{len(found)} hyperparameters are" if found else "no hyperparameter is"
        wanted = "write one of" if found else "similar are"
        raise KeyError(f"{what} called `{name}`; {wanted} {list_some(found or alike)}")

    def tree_flatten_with_keys(self) -> tuple[list, tuple]:
        names = sorted(self)
        return [(DictKey(k), self[k]) for k in names], tuple(names)

    @classmethod
    def tree_unflatten(cls, names: tuple, values: Iterable) -> "Hyperparams":
        return cls(zip(names, values, strict=True))


@rx.explain_misuse
def hyperparams(tx: rx.TransformationLike, state: rx.OptState) -> dict[str, Any]:
    """The hyperparameters of a transformation, and of all in it, at the last step.

    Injected hyperparameters are read from the state.  Those with a schedule follow from
    its step count: the values that the last step used or, before any step, those that
    the first one will use.  All others have the values that were passed.
    This also works under `jit`.

    tx: the transformation.
    state: its state.

    Raises a `ValueError` for the state of another transformation.
    Returns a dict from paths to values; a path is that of a transformation in the state
    followed by the name of its argument, as in "1/0/b1".  The name alone, as in "b1",
    is enough if only one of them has it; otherwise it raises a `KeyError` that lists
    the paths.

    >>> stepax.hyperparams(tx, state)["learning_rate"]
    0.1
    """
    rx.require_transformation(tx, "`tx` of `hyperparams`")
    found = all_values(open_components(tx, state))
    return Hyperparams({path: x.value for path, x in found.items()})


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


def _injected(
    state: rx.OptState, path: tuple, whole: bool
) -> Iterator[tuple[tuple, Value]]:
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
        yield from _arguments(component.call, component.state)
        return
    rows = {k: dict(_arguments(x, component.state)) for k, x in varied.calls.items()}
    first = next(iter(rows.values()))
    for name, x in first.items():
        if all(is_same(x.value, row[name].value) for row in rows.values()):
            yield name, x
            continue
        for pattern, row in rows.items():
            yield entry(name, pattern), row[name]


def _arguments(made: Any, state: rx.OptState) -> Iterator[tuple[str, Value]]:
    if made is None:
        return
    call = made.bound
    numbers, schedules = Arguments(made.factory, call.args, call.kwargs).sort(())
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


def _fields(state: rx.OptState) -> dict[str, Any]:
    """The fields of a named tuple, by name; none of anything else."""
    return {} if rx.errors.fields_of(state) is None else state._asdict()
