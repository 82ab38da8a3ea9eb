"""A check for swapped parameters and state."""

from typing import Any

from .._engine.base.optax_types import COMPATIBLE
from .._engine.trees.pack import unpack
from .._engine.trees.search import open_node
from .entries import entries


def require_order(params: Any, state: Any) -> None:
    """Raise if `params` is a state and `state` looks like its parameters.

    Both are required, because a tree that contains states, such as a train state, may
    be saved as parameters.
    """
    if not _has_state(params) or _has_state(state):
        return
    slots = entries(unpack(params))
    given = [x for x in entries(unpack(state)) if not x.dtype.startswith("key<")]
    has_values = any(x.owner == "" or x.own[1:] for x in slots)
    mirrored = {(x.own[1:], x.shape) for x in slots if x.owner}
    if given and (all((x.names, x.shape) in mirrored for x in given) or not has_values):
        raise ValueError(
            "`params` is the state of a transformation, and `state` is not: the order "
            "is `save(directory, step, params, state)`"
        )


def _has_state(node: Any) -> bool:
    name = type(node).__name__
    if hasattr(node, "_fields") and (name in COMPATIBLE or name.endswith("State")):
        return True
    return any(_has_state(x) for _, x in open_node(node)[0])
