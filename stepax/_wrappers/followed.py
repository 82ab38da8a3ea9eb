"""A transformation followed by a rule, with both states merged into one.

Wrappers that act on the iterates of an optimizer, such as averages, are built from it.
"""

from collections.abc import Callable
from typing import Any, cast

import jax

from .._engine import rules as rx


class Followed(rx.Composite):
    """The inner transformation, then a rule whose fields are in the state itself.

    name: the name of the factory, for errors.
    State: a named tuple of the fields of the rule's state, and of `field`.
    field: the field that holds the state of the inner transformation.
    """

    def __init__(
        self,
        name: str,
        inner: rx.GradientTransformation,
        rule: rx.GradientTransformation,
        State: type,
        field: str = "inner_state",
    ):
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


def evaluated(
    name: str,
    State: type,
    at: Callable[[jax.Array, jax.Array, rx.ArrayLike], jax.Array],
    fields: tuple[str, str],
    state: rx.OptState,
    params: rx.Params,
) -> rx.Params:
    """`at(p, x, scalar)` for parameters p for which the state has an x.

    name: the name of the calling function, for errors.
    State: the named tuple to look for, anywhere in the state.
    fields: the fields of x and of the scalar.

    Raises a `ValueError` if there is no such state.
    """
    states = [x for _, x in rx.get_all_with_path(state, State.__name__)]
    if not states:
        raise rx.errors.foreign_state(name, State, state)
    for found in states:
        stored, scalar = (found._asdict()[k] for k in fields)
        params = rx.map_stored(
            lambda x, p, scalar=scalar: at(p, x, scalar), stored, fields[0], params
        )
    return params


@rx.computed_wide
def mean_of(y, z, weight):
    """The x for which y = weight x + (1 - weight) z."""
    return z + (y - z) / weight  # exactly y where z = y
