"""The sanitizers of a nest, which clean gradients before anything else reads them.

`zero_nans` inside `MultiSteps` has to see each micro-batch, or a single NaN would
poison the mean.  Sanitizers are found in chains, masks and partitions, and inside
wrappers that pass gradients on unread, in whatever form, but not inside wrappers that
read or judge them, such as `apply_if_finite`.
"""

import functools as ft
from collections.abc import Callable

from ..base import OptState, Params, TransformationLike, Updates
from ..base.node import node_of
from ..trees.selection import Scope
from . import Gradients
from .kernel import Pass
from .nest import Composite
from .packed_gradients import gradients_of
from .rule import Rule


class Sanitizers:
    """The sanitizers in a transformation, at any depth."""

    def __init__(self, tx: TransformationLike):
        self.tx = tx

    # Computed lazily: a wrapper whose members are made at each step, such as
    # `inject_hyperparams`, has to call its factory for this.
    @ft.cached_property
    def is_any(self) -> bool:
        """Whether there are any."""
        return node_of(self.tx).has_sanitizer

    def clean(
        self, updates: Updates, state: OptState, params: Params
    ) -> tuple[Updates, list]:
        """The cleaned updates, and the new states of the sanitizers."""
        if not self.is_any:
            return updates, []
        gradients, found = gradients_of(updates, params), []

        def run(rule, state, seen, scope):
            found.extend(Pass([rule], [""])(seen, [state], [scope], {}))
            return state

        _visit(self.tx, state, run, gradients, gradients.whole_scope())
        return gradients.updates, found

    def read(self, state: OptState) -> list:
        """Their states, from the state of the nest."""
        found = []
        if self.is_any:
            _visit(self.tx, state, lambda rule, s, *seen: found.append(s))
        return found

    def write(self, state: OptState, found: list) -> OptState:
        """The state of the nest with these states of the sanitizers."""
        if not self.is_any:
            return state
        new = iter(found)
        return _visit(self.tx, state, lambda rule, s, *seen: next(new))


def _visit(
    tx: TransformationLike,
    state: OptState,
    visit: Callable[[Rule, OptState, Gradients | None, Scope], OptState],
    gradients: Gradients | None = None,
    scope: Scope = None,
) -> OptState:
    """The state of a nest, with what `visit` returns for each sanitizer.

    gradients: used to resolve masks; without them `scope` is always `None`.
    """
    node = node_of(tx)
    if isinstance(node, Rule):
        return visit(node, state, gradients, scope) if node.sanitizes else state
    if not node.has_sanitizer:
        return state
    if not isinstance(node, Composite):
        field, shows = node.hands_on, node.shows
        old = getattr(state, field) if field else state
        inner = ft.partial(_visit, node.callees[field], old, visit)
        if gradients is None or shows is None:
            new = inner(gradients, scope)
        else:
            trees = gradients.cut(scope), gradients.cut_params(scope)
            updates, params, back = shows(*trees)
            within = gradients_of(updates, params)
            new = inner(within)
            gradients.merge(back(within.updates), scope)
        return state._replace(**{field: new}) if field else new
    members, states = node.members, node.unpack(state)
    if gradients is None:
        scopes = [None] * len(members)
    else:
        scopes = node.scopes(gradients, scope)
    rows = zip(members, states, scopes, strict=True)
    return node.pack([_visit(tx, s, visit, gradients, at) for tx, s, at in rows])
