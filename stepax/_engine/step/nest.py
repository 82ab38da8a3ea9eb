"""Composites: transformations that are made of others, which plans look into.

Every composite knows its members, how its state holds theirs, and which leaves they
see.
"""

from collections.abc import Sequence

from ..arrays.precision import compute_dtype, is_inexact
from ..base import OptState, Params, TransformationLike, Updates
from ..base.node import Node, combined, init_of, node_of
from ..trees import errors
from ..trees.selection import Scope
from . import Gradients
from .leafwise import map_gradients


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

    def _judged(self, old, new, extra):
        rows = zip(self.members, self.unpack(old), self.unpack(new), strict=True)
        found = [node_of(tx).was_step(*states, extra) for tx, *states in rows]
        return [combined(found, self.has_scopes)]


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
