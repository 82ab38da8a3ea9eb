"""Resets parts of a state to their initial values."""

from collections.abc import Sequence
from typing import Any

import jax
from jax.core import Tracer

from ..arrays.placement import put_on
from ..base.protocol import (
    GradientTransformation,
    OptState,
    Params,
    require_transformation,
)
from ..functions.calls import explain_misuse
from . import errors, paths
from .search import get_all_with_path, open_node, why_missing


@explain_misuse
def reset(
    tx: GradientTransformation,
    state: OptState,
    params: Params,
    where: str | Sequence[str],
) -> OptState:
    """A copy of a state with some parts reset to the values from `tx.init(params)`.

    All other parts are kept, and so are the structure, shapes, dtypes and, outside
    `jit`, devices: a step compiled for the old state also accepts the new one.  Step
    counts are parts, too: the bias of reset moments is corrected only if their count is
    also reset.

    tx: the transformation that the state belongs to.
    state: its state.
    params: the parameters, from which slots such as a slow copy restart.
    where: a name or a path pattern, as in `tree.get`, or several: "mu" and "mu/**"
        select all means, "nu/embed/**" selects `nu` of the parameters in `embed`.

    Raises a `KeyError` for a pattern that matches nothing, and lists similar paths; a
    `ValueError` for a state that does not fit `tx` and `params`.
    """
    require_transformation(tx, "`tx` of `reset`")
    fresh = tx.init(params)
    if jax.tree.structure(fresh) != jax.tree.structure(state):
        raise errors.mismatch("state", state, "what `tx.init(params)` makes", fresh)
    chosen = {}
    for pattern in [where] if isinstance(where, str) else where:
        found = get_all_with_path(state, pattern)
        if not found:
            raise KeyError(why_missing(state, pattern))
        chosen |= {path: pattern for path, _ in found}

    def walk(path, old, new):
        if path in chosen:
            return _reset(chosen[path], path, old, new)
        pairs, treedef = open_node(old)
        if not pairs:
            return old
        below = [x for _, x in open_node(new)[0]]
        return treedef.unflatten(
            walk((*path, key), x, y) for (key, x), y in zip(pairs, below, strict=True)
        )

    return walk((), state, fresh)


def _reset(pattern: str, path: tuple, old: Any, new: Any) -> Any:
    return jax.tree.map(_beside, paths.fitted(pattern, path, old, new), old)


def _beside(x: Any, was: Any) -> Any:
    """`x` on the devices of `was`."""
    is_known = all(isinstance(y, jax.Array) for y in (x, was))
    if not is_known or isinstance(x, Tracer) or isinstance(was, Tracer):
        return x
    return put_on(x, was.sharding) if x.sharding != was.sharding else x
