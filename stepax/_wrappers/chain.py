"""Chains: transformations that are applied one after another.

One of them may be followed by a rule, so that their states are merged into one.
"""

from collections import OrderedDict, namedtuple
from collections.abc import Sequence
from typing import Any, cast

from .._engine import rules as rx
from .._engine.step.nest import Chain


class NamedChain(rx.Composite):
    """Members in order; the state maps their names to their states."""

    def __init__(self, names: Sequence[str], members: Sequence[Any]):
        self.names = names
        self.members = members

    def unpack(self, state):
        if not isinstance(state, dict) or set(state) != set(self.names):
            found = (
                list(state) if isinstance(state, dict) else rx.errors.describe(state)
            )
            raise rx.errors.of_step(
                f"a chain of {list(self.names)} was given {found} as its state"
                f"{rx.errors.state_hint(state)}"
            )
        return [state[name] for name in self.names]

    def pack(self, states):
        return OrderedDict(zip(self.names, states, strict=True))


@rx.public("wrapper")
def chain(*args: rx.TransformationLike) -> rx.GradientTransformationExtraArgs:
    """Apply transformations in order.

        u_0 = g,   u_n = update_n(u_{n-1}),   the result is the last u

    Keywords of `update` reach every member that takes keywords.  Neighboring rules run
    in one pass over the leaves.

    args: the transformations; the state is a tuple of theirs, in the same order.

    Raises a `ValueError` without any, and a `TypeError` for an argument that is not a
    transformation.
    """
    if not args:
        raise ValueError(
            "`chain` needs a transformation; `identity()` returns updates unchanged"
        )
    for i, tx in enumerate(args):
        rx.require_transformation(tx, f"argument {i} of `chain`")
    return rx.build(Chain(args))


@rx.public("wrapper")
def named_chain(
    *args: tuple[str, rx.TransformationLike],
) -> rx.GradientTransformationExtraArgs:
    """Apply transformations in order, with a state keyed by their names.

    args: pairs of a name and a transformation; the state maps names to states.

    Raises a `ValueError` for a name that occurs twice, a `TypeError` for an argument
    that is not such a pair.
    """
    for i, pair in enumerate(args):
        is_pair = isinstance(pair, tuple | list) and len(pair) == 2
        if not is_pair or rx.is_transformation(pair):
            raise TypeError(
                f"argument {i} of `named_chain` must be a pair of a name and a "
                f"transformation, but is `{pair!r}`"
            )
        rx.require_transformation(pair[1], f"`{pair[0]}` in `named_chain`")
    names = [name for name, _ in args]
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise ValueError(
            "names in `named_chain` must be unique, but these occur more than once: "
            f"{twice}"
        )
    return rx.build(NamedChain(names, [tx for _, tx in args]))


class Followed(rx.Composite):
    """The inner transformation, then a rule whose fields are in the state itself.

    Wrappers that act on the iterates of an optimizer, such as averages, are built so.

    name: the name of the factory, for errors.
    State: a named tuple of the fields of the rule's state, and of `field`.
    field: the field that holds the state of the inner transformation.
    """

    def __init__(self, name, inner, rule, State: type, field: str = "inner_state"):
        self.members = (inner, rule)
        self.name, self.State, self.field = name, State, field

    def unpack(self, state):
        rx.errors.require_state(self.name, self.State, state)
        Own = cast(Any, rx.node_of(self.members[1])).State
        parts = state._asdict()
        return [parts[self.field], Own(*(parts[k] for k in Own._fields))]

    def pack(self, states):
        inner, own = states
        return self.State(**{self.field: inner}, **own._asdict())


def own_fields(State: Any, field: str = "inner_state") -> Any:
    """A named tuple of the fields of a state but `field`: the state of the rule."""
    return namedtuple(State.__name__, [k for k in State._fields if k != field])
