"""A transformation that is followed by a rule, with the states of both in one.

It is what wrappers are made of that act on the iterates of an optimizer, such as those
that average them.
"""

from typing import Any, cast

from .._engine.base.protocol import GradientTransformation, init_of
from .._engine.step.plan import Composite, node_of
from .._engine.trees import errors


class Followed(Composite):
    """The inner transformation, then a rule, whose fields are in the state directly.

    name: the factory, for errors.
    State: a named tuple of the fields of the rule's state, and of `field`.
    field: where the state of the inner transformation is.
    """

    def __init__(
        self,
        name: str,
        inner: GradientTransformation,
        rule: GradientTransformation,
        State: type,
        field: str = "inner_state",
    ):
        self.members = (inner, rule)
        self.name, self.State, self.field = name, State, field

    def init(self, params):
        return self.pack([init_of(tx)(params) for tx in self.members])

    def unpack(self, state):
        errors.require_state(self.name, self.State, state)
        Own = cast(Any, node_of(self.members[1])).State
        own = Own(*(getattr(state, k) for k in Own._fields))
        return [getattr(state, self.field), own]

    def pack(self, states):
        inner, own = states
        return self.State(**{self.field: inner}, **own._asdict())
