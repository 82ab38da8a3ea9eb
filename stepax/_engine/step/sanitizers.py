"""The sanitizers of a nest, which clean gradients before all else.

`zero_nans` inside of `MultiSteps` has to see each micro-batch, or a single NaN would
poison the mean.  Sanitizers are found in chains, masks and partitions, and behind what
hands gradients on unread; not behind what judges them, such as `apply_if_finite`.
"""

import functools as ft
from collections.abc import Callable
from typing import Any

from .gradients import Gradients
from .kernel import Pass
from .plan import Composite, node_of
from .rule import Rule


class Sanitizers:
    """The sanitizers in a transformation, wherever they are."""

    def __init__(self, tx: Any):
        self.tx = tx

    # Not before it is needed, because the factories in a nest are called for it.
    @ft.cached_property
    def is_any(self) -> bool:
        """Whether there is one."""
        return _has_sanitizer(self.tx)

    def clean(self, updates: Any, state: Any, params: Any) -> tuple[Any, list]:
        """The updates without what they remove, and their new states."""
        if not self.is_any:
            return updates, []
        gradients, found = Gradients(updates, params), []

        def run(rule, state, scope):
            found.extend(Pass([rule], [""])(gradients, [state], [scope], {}))
            return state

        _visit(self.tx, state, run, gradients, None)
        return gradients.updates, found

    def read(self, state: Any) -> list:
        """Their states in that of the nest."""
        found = []
        if self.is_any:
            _visit(self.tx, state, lambda rule, s, scope: found.append(s))
        return found

    def write(self, state: Any, found: list) -> Any:
        """The state of the nest with other states of theirs."""
        if not self.is_any:
            return state
        new = iter(found)
        return _visit(self.tx, state, lambda rule, s, scope: next(new))


def _handed_on(tx: Any) -> tuple[str, Any] | None:
    """The field and the member to which a closure hands gradients unread."""
    field = getattr(tx, "hands_on", "")
    return (field, tx.members[field]) if field else None


def _has_sanitizer(tx: Any) -> bool:
    node = node_of(tx)
    if isinstance(node, Composite):
        return any(map(_has_sanitizer, node.members))
    if handed_on := _handed_on(node):
        return _has_sanitizer(handed_on[1])
    return isinstance(node, Rule) and node.sanitizes


def _visit(
    tx: Any,
    state: Any,
    visit: Callable,
    gradients: Gradients | None = None,
    scope: Any = None,
) -> Any:
    """The state of a nest with what `visit(rule, state, scope)` returns for them.

    gradients: where the masks on the way are resolved; without it there is no scope.
    """
    node = node_of(tx)
    if isinstance(node, Rule):
        return visit(node, state, scope) if node.sanitizes else state
    if not _has_sanitizer(node):
        return state
    if not isinstance(node, Composite):
        field, member = node.hands_on, node.members[node.hands_on]
        new = _visit(member, getattr(state, field), visit, gradients, scope)
        return state._replace(**{field: new})
    members, states = node.members, node.unpack(state)
    if gradients is None:
        scopes = [None] * len(members)
    else:
        scopes = node.scopes(gradients, scope)
    rows = zip(members, states, scopes, strict=True)
    return node.pack([_visit(tx, s, visit, gradients, at) for tx, s, at in rows])
