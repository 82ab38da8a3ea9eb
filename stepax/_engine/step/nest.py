"""Composites: transformations that are made of others, which plans look into.

Sanitizers in a nest clean gradients before anything else reads them.  `zero_nans`
inside `MultiSteps` has to see each micro-batch, or a single NaN would poison the mean.
Sanitizers are found in chains, masks and partitions, and inside wrappers that pass
gradients on unread, in whatever form, but not inside wrappers that read or judge them,
such as `apply_if_finite`.
"""

import functools as ft
from collections.abc import Callable, Sequence

from ..arrays.precision import compute_dtype, is_inexact
from ..base import OptState, Params, TransformationLike, Updates
from ..base.node import Node, init_of, node_of
from ..base.stepped import all_by_leaf, combined
from ..trees import errors
from ..trees.selection import Scope
from . import Gradients
from .kernel import Pass
from .leafwise import map_gradients
from .packed_gradients import gradients_of
from .rule import Rule


class Composite(Node):
    """A transformation that is made of others, as subclasses define."""

    # Whether members see different leaves than the composite.
    has_scopes = False

    def init(self, params: Params, /) -> OptState:
        """The first state."""
        return self.pack([init_of(tx)(params) for tx in self.members])

    def unpack(self, state: OptState) -> Sequence[OptState]:
        """The states of the members."""
        raise NotImplementedError

    def pack(self, states: Sequence[OptState]) -> OptState:
        """The state, from those of the members."""
        raise NotImplementedError

    def scopes(self, gradients: Gradients, scope: Scope) -> Sequence[Scope]:
        """The leaves that each member sees, among those in `scope`."""
        return [scope] * len(self.members)

    def parts(self):
        for member in self.members:
            yield from node_of(member).parts()

    @property
    def keeps_dtypes(self) -> bool:
        return all(part.keeps_dtypes for part in self.parts())

    @property
    def has_sanitizer(self) -> bool:
        return any(node_of(x).has_sanitizer for x in self.members)

    def _judged(self, old, new, extra, seen):
        rows = zip(self.members, self.unpack(old), self.unpack(new), strict=True)
        if seen is None:
            found = [node_of(tx).was_step(*states, extra) for tx, *states in rows]
            return [combined(found, self.has_scopes)]
        gradients, scope = seen
        inner = [(gradients, x) for x in self.scopes(gradients, scope)]
        pairs = zip(rows, inner, strict=True)
        return all_by_leaf(
            [node_of(tx).steps(*states, extra, x) for (tx, *states), x in pairs]
        )


class Chain(Composite):
    """Members in order; the state is a tuple of theirs."""

    def __init__(self, members: Sequence[TransformationLike]):
        self.members = members

    def unpack(self, state):
        n = len(self.members)
        # A named tuple is the state of something else, even if it has as many fields.
        if type(state) is not tuple or len(state) != n:
            errors.require_states(f"a chain of {n} transformations", n, state)
        return state

    def pack(self, states):
        return tuple(states)


def like_updates(updates: Updates, *txs: TransformationLike) -> Updates:
    """The gradients in the dtypes that updates of these transformations have.

    Wrappers round updates to the dtypes of gradients, unless a part forbids it.
    """
    if not any(node_of(tx).holds_exact for tx in txs):
        return updates
    return map_gradients(
        lambda g: g.astype(compute_dtype(g)) if is_inexact(g) else g, updates
    )


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
