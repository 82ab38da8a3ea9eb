"""The components of a transformation, and the part of the state that each one owns.

Composites, such as chains and masks, know their members; a closure declares the
transformations that it calls, and the fields of its state that hold theirs.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import jax
from jax.tree_util import tree_flatten_with_path

from ..base.protocol import Params, is_array, partition_arrays
from ..step.gradients import Gradients
from ..step.plan import Composite, node_of, wrapped_by
from ..trees import selection
from ..trees.labels import Scope
from ..trees.pack import unpack
from ..trees.search import open_node


T = TypeVar("T")


@dataclass(eq=False)
class Component:
    """A transformation inside of another one.

    path: the keys that lead to its state, in that of the whole.
    state: its state; `None` if it was not found in the state of its wrapper.
    scope: the leaves that it sees; `None` for all, or if they are not known.
    parts: the transformations that it is made of, in order.
    """

    tx: Any
    path: tuple
    state: Any
    scope: Scope
    parts: "list[Component]" = field(default_factory=list)

    @property
    def recipe(self) -> Any:
        return getattr(self.tx, "recipe", None)

    @property
    def is_leaf(self) -> bool:
        """Whether it transforms updates itself, rather than combining others."""
        return not isinstance(node_of(self.tx), Composite)

    def walk(self) -> "Iterator[Component]":
        """The component and all components below it, in preorder."""
        yield self
        for part in self.parts:
            yield from part.walk()


def open_components(
    tx: Any,
    state: Any,
    gradients: Gradients | None = None,
    scope: Scope = None,
    path: tuple = (),
) -> Component:
    """A transformation with its parts.

    gradients: parameters in place of gradients, to resolve masks, if known.
    """
    component, node = Component(tx, path, state, scope), node_of(tx)
    if isinstance(node, Composite):
        states = None if state is None else node.unpack(state)
        component.parts = list(_members(node, states, gradients, scope, path))
    else:
        component.parts = list(_wrapped(component, gradients))
    return component


def examine(tx: Any, params: Params, read: Callable[[Component, Gradients], T]) -> T:
    """What `read` returns for a transformation with its initial state.

    Its argument has abstract arrays in the state, and parameters in place of gradients:
    no step is run, and nothing as large as a parameter is allocated.
    """
    arrays, rebuild = partition_arrays(unpack(params))
    found: list[T] = []

    # The result leaves the trace in a list, as it is not an array that could be
    # returned.
    def look(arrays):
        tree = rebuild(arrays)
        only = jax.tree.map(lambda p: p if is_array(p) else None, tree)
        gradients = Gradients(only, tree)
        component = open_components(tx, tx.init(tree), gradients)
        found.append(read(component, gradients))

    # Abstractly: `init` of a model that fills the memory must not allocate it again.
    jax.eval_shape(look, arrays)
    return found[0]


def _members(node, states, gradients, scope, path) -> Iterator[Component]:
    scopes = (
        [None] * len(node.members)
        if gradients is None
        else node.scopes(gradients, scope)
    )
    if states is None:
        rows = [(None, ())] * len(node.members)
    else:
        rows = zip(states, _places(node, states), strict=True)
    for tx, (state, below), reached in zip(node.members, rows, scopes, strict=True):
        yield open_components(tx, state, gradients, reached, path + below)


class _Mark:
    """Represents a leaf of a member's state."""

    def __init__(self, owner: int):
        self.owner = owner


def _places(node: Composite, states: Iterable) -> list[tuple]:
    """The path of each member's state in the state of the composite."""
    marked, depths = [], []
    for i, state in enumerate(states):
        below, treedef = tree_flatten_with_path(state)
        marks = treedef.unflatten(_Mark(i) for _ in below)
        marked.append(marks if below else _Mark(i))
        depths.append(len(below[0][0]) if below else 0)
    first = {}
    for path, mark in tree_flatten_with_path(node.pack(marked))[0]:
        first.setdefault(mark.owner, path[: len(path) - depths[mark.owner]])
    return [first[i] for i in range(len(marked))]


def _wrapped(component: Component, gradients: Gradients | None) -> Iterator[Component]:
    for name, tx in wrapped_by(component.tx).items():
        path, state = _below(component.state, name)
        where = component.path + path
        yield open_components(tx, state, gradients, component.scope, where)


def _below(state: Any, place: str) -> tuple[tuple, Any]:
    """The path to a field of a state, and its value."""
    path = []
    for name in filter(None, place.split("/")):
        children = {} if state is None else dict(open_node(state)[0])
        found = [key for key in children if selection.path_names((key,)) == (name,)]
        if not found:
            return (), None
        path.append(found[0])
        state = children[found[0]]
    return tuple(path), state
