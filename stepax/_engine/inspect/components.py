"""What a transformation is made of, and which part of the state is whose.

A chain, a mask and their like say so themselves.  What is a closure names the
transformations that it wraps; their states are found in its own by their form.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.tree_util import tree_flatten_with_path

from ..base.protocol import Transformation
from ..step.gradients import Gradients, Scope
from ..step.plan import Composite, part_of
from ..step.rule import Rule
from ..trees.search import open_node


@dataclass
class Component:
    """A transformation in its place in another.

    path: the keys that lead to its state, in that of the whole.
    state: its state; `None` if it could not be found in that of what wraps it.
    scope: the leaves that it sees; `None` for all, or if they are not known.
    parts: the transformations that it is made of, in their order.
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
        """Whether it does something itself, instead of ordering what others do."""
        return not isinstance(part_of(self.tx), Composite)

    def walk(self) -> "Iterator[Component]":
        """It and all its parts, each before its own parts."""
        yield self
        for part in self.parts:
            yield from part.walk()


def open_components(
    tx: Any,
    state: Any,
    flow: Gradients | None = None,
    scope: Scope = None,
    path: tuple = (),
) -> Component:
    """A transformation with its parts.

    flow: parameters in place of gradients, by which masks are resolved, if known.
    """
    organ, node = Component(tx, path, state, scope), part_of(tx)
    if isinstance(node, Composite):
        states = None if state is None else node.unpack(state)
        organ.parts = list(_members(node, states, flow, scope, path))
    else:
        organ.parts = list(_wrapped(organ, flow))
    return organ


def _members(node, states, flow, scope, path) -> Iterator[Component]:
    scopes = [None] * len(node.members) if flow is None else node.scopes(flow, scope)
    if states is None:
        rows = [(None, ())] * len(node.members)
    else:
        rows = zip(states, _places(node, states), strict=True)
    for tx, (state, below), reached in zip(node.members, rows, scopes, strict=True):
        yield open_components(tx, state, flow, reached, path + below)


class _Mark:
    """Stands for a leaf of a member's state."""

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


def wrapped_by(tx: Any) -> list:
    """The transformations that one that is no composite says it wraps."""
    if type(tx) is Transformation and not tx.node:
        inner: Any = tx.inner() if callable(tx.inner) else tx.inner
        return list(inner or ())
    inner = getattr(tx, "inner_opt", None)  # `MultiSteps`, ours and Optax's
    return [] if inner is None else [inner]


def _wrapped(organ: Component, flow: Gradients | None) -> Iterator[Component]:
    taken = []
    for tx in wrapped_by(organ.tx):
        found = None
        if organ.state is not None:
            like = _structure(tx, flow, organ.scope)
            found = next(_candidates(tx, organ.state, like, taken), None)
        if found is None:
            yield open_components(tx, None, flow, organ.scope, organ.path)
            continue
        taken.append(found[1])
        yield open_components(tx, found[1], flow, organ.scope, organ.path + found[0])


def _structure(tx: Any, flow: Gradients | None, scope: Scope) -> Any:
    """That of the first state, if the parameters are known and what it is made for."""
    if flow is None:
        return None
    try:
        return jax.tree.structure(tx.init(flow.cut_params(scope)))
    except Exception:  # its wrapper hands other parameters to it, such as flat ones
        return None


def _candidates(tx: Any, state: Any, like: Any, taken: list) -> Iterator:
    """Paths and values in a state, from the outside to the inside, that may be `tx`'s.

    like: the structure of its state; `None` if that is not known.
    """
    level = [((), state)]
    while level:
        for path, x in level:
            is_free = all(x is not y for y in taken)
            is_like = like is not None and jax.tree.structure(x) == like
            if is_free and (is_like or _fits(tx, x) or _is_named(tx, x, path)):
                yield path, x
        opened = [(path, open_node(x)[0]) for path, x in level]
        level = [((*path, key), x) for path, below in opened for key, x in below]


def _fits(tx: Any, state: Any, is_member: bool = False) -> bool:
    """Whether a state is of the classes that our own transformation has.

    is_member: whether its place is known, so that what cannot be told may be so.
    """
    node = part_of(tx)
    if isinstance(node, Rule):
        return type(state).__name__ == node.State.__name__
    if not isinstance(node, Composite):
        inner = wrapped_by(tx)
        return is_member or (len(inner) == 1 and _fits(inner[0], state))
    try:
        states = node.unpack(state)
    except (ValueError, TypeError, AttributeError):
        return False
    return all(_fits(m, s, True) for m, s in zip(node.members, states, strict=True))


def _is_named(tx: Any, state: Any, path: tuple) -> bool:
    """Whether the state of a closure that nobody looks into is where one would be."""
    is_known = isinstance(part_of(tx), Rule | Composite)
    field = getattr(path[-1], "name", "") if path else ""
    return not is_known and isinstance(state, tuple) and field.endswith("state")
