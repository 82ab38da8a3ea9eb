"""The parts of a state that are shaped like the parameters."""

import functools as ft
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.tree_util import DictKey, GetAttrKey

from ..base import GradientTransformation
from .paths import NamedTupleKey, label, walk
from .search import placeholder


class SlotMark:
    """A placeholder that rules mark: it says which slot a part of a state is.

    slot: the slot; `None` where a closure or another library made the part.
    """

    slot: Any = None

    def of(self, slot: Any) -> "SlotMark":
        """The mark of a slot."""
        new = type(self)()
        new.slot = slot
        return new


@ft.cache
def _mark_class(kind: type) -> Callable[[], SlotMark]:
    # Static, so that it comes back as the same instance, whatever maps over the state.
    return jax.tree_util.register_static(type("SlotMark", (SlotMark, kind), {}))


class Part(NamedTuple):
    """A part of a state that is shaped like the parameters.

    name: its field, "" if it has none.
    owner: the class of the state that it belongs to, "" if there is none.
    slot: the slot of a rule that it is; `None` if it is not a slot.
    """

    name: str
    owner: str
    slot: Any


def slots_like_params(
    initable: GradientTransformation,
) -> tuple[list[Part | None], Any]:
    """The parts of a state in flattening order, and its structure with these as leaves.

    Parts that are not shaped like the parameters are `None`.
    """
    state = initable.init(_mark_class(type(placeholder()))())

    def is_part(x):
        return isinstance(x, SlotMark)

    treedef = jax.tree.structure(state, is_leaf=is_part)
    return [_part(path, x) for path, x in walk(state, is_part)], treedef


def _part(path, x):
    if not isinstance(x, SlotMark):
        return None
    named = [k for k in path if isinstance(k, NamedTupleKey | GetAttrKey | DictKey)]
    owners = [k.tuple_name for k in named if isinstance(k, NamedTupleKey)]
    name = str(label(named[-1])) if named else ""
    return Part(name, owners[-1] if owners else "", x.slot)
