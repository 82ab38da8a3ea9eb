"""The parts of a state that are shaped as the parameters."""

import functools as ft
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
from jax.tree_util import DictKey, GetAttrKey

from ..base.protocol import ArrayTree, GradientTransformation, MaskedNode, OptState
from ..functions.calls import explain_misuse
from .errors import describe
from .search import NamedTupleKey, label, open_node


@jax.tree_util.register_static
class _Placeholder:
    """Passed to `init` for the parameters, to see where a state is shaped as these."""


def _placeholder() -> object:
    """Optax's placeholder if Optax is loaded, otherwise our own."""
    # Optax's `masked` with a mask given as a tree accepts only its own.  The class is
    # private, but `tree_map_params` passes an instance to `init`.
    given = []
    theirs = getattr(sys.modules.get("optax"), "tree_map_params", map_params)
    if theirs is not map_params:
        theirs(SimpleNamespace(init=given.append), lambda x: x, None)
    return given[0] if given else _Placeholder()


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
    """A part of a state that is shaped as the parameters.

    name: its field, "" if it has none.
    owner: the class of the state that it belongs to, "" if there is none.
    slot: which slot of a rule it is; `None` if it is none.
    """

    name: str
    owner: str
    slot: Any


def slots_like_params(
    initable: GradientTransformation,
) -> tuple[list[Part | None], Any]:
    """The parts of a state in flattening order, and its structure with these as leaves.

    For a part that is not shaped as the parameters, `None` is returned.
    """
    state = initable.init(_mark_class(type(_placeholder()))())
    is_part = lambda x: isinstance(x, SlotMark)
    treedef = jax.tree.structure(state, is_leaf=is_part)
    return [_part(path, x) for path, x in _walk(state, (), is_part)], treedef


def parts_like_params(
    initable: GradientTransformation,
) -> tuple[list[str | None], Any]:
    """As `slots_like_params`, but with the names alone."""
    parts, treedef = slots_like_params(initable)
    return [None if part is None else part.name for part in parts], treedef


def _walk(node, path, is_leaf):
    """The leaves of a tree in flattening order, with paths that name the classes."""
    if is_leaf(node) or jax.tree_util.all_leaves([node]):
        yield path, node
        return
    for step, x in open_node(node)[0]:
        yield from _walk(x, (*path, step), is_leaf)


def _part(path, x):
    if not isinstance(x, SlotMark):
        return None
    named = [k for k in path if isinstance(k, NamedTupleKey | GetAttrKey | DictKey)]
    owners = [k.tuple_name for k in named if isinstance(k, NamedTupleKey)]
    name = str(label(named[-1])) if named else ""
    return Part(name, owners[-1] if owners else "", x.slot)


@explain_misuse
def map_params(
    initable: Any,  # Optax's transformations as well
    f: Callable,
    state: OptState,
    /,
    *rest: ArrayTree,
    transform_non_params: Callable | None = None,
    is_leaf: Callable[[Any], bool] | None = None,
) -> OptState:
    """Map a function over the parts of a state that are shaped as the parameters.

    f(value, *leaves of rest)    at each parameter, in each such part
    transform_non_params(value)  elsewhere

    initable: the transformation that made the state, or its `init`.
    f: called with a value of the state and the leaves of `rest` for that parameter.
    state: the state.
    rest: trees of the structure of the parameters, such as specs of a sharding.
    transform_non_params: `None` leaves the rest of the state as it is.
    is_leaf: as in `jax.tree.map`; if it is true of a `MaskedNode`, `f` is called with
        it, otherwise masked parameters stay masked.

    Raises ValueError if the state was made by another transformation.
    """
    init = getattr(initable, "init", initable)
    if not callable(init):
        raise TypeError(
            f"`initable` is {describe(initable)}, expected a gradient "
            "transformation or an `init` function"
        )
    placeholder = _placeholder()
    is_place = lambda x: type(x) is type(placeholder)
    places, treedef = jax.tree.flatten(init(placeholder), is_leaf=is_place)
    try:
        values = treedef.flatten_up_to(state)
    except (ValueError, TypeError) as error:
        raise ValueError(
            "`state` differs from what `initable` makes; give the transformation "
            f"that made it ({error})"
        ) from None

    # A masked parameter has no state, so neither `f` nor the trees of `rest` are opened
    # there.
    def stop(x):
        return isinstance(x, MaskedNode) or (is_leaf is not None and is_leaf(x))

    def leaf(x, *others):
        is_asked = is_leaf is not None and is_leaf(x)
        return x if isinstance(x, MaskedNode) and not is_asked else f(x, *others)

    def part(place, value):
        if is_place(place):
            return jax.tree.map(leaf, value, *rest, is_leaf=stop)
        return value if transform_non_params is None else transform_non_params(value)

    return treedef.unflatten(map(part, places, values))
