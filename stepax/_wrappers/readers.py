"""Reads what states keep for the parameters, such as their averages.

A state may hold another one twice: `rollback` keeps a copy of it, and `sam` has a
second optimizer.  What is read is the one that belongs to the present parameters, and
for each parameter there has to be a single one.
"""

import itertools as it
from collections.abc import Callable
from typing import Any

import jax

from .._engine import rules as rx
from .._engine.trees.search import Path, is_present, spell
from .flatten import unjoined


def present(
    caller: str, State: Any, state: rx.OptState, fields: tuple[str, ...] = ()
) -> list[tuple[Path, Any]]:
    """The states of a class, with their paths, but for those that are kept aside.

    fields: those that make `state` itself one, if its class has another name.
    """
    if found := rx.get_all_with_path(state, State.__name__, is_present):
        return found
    if fields and {*fields}.issubset(rx.errors.fields_of(state) or ()):
        return [((), state)]
    raise rx.errors.foreign_state(caller, State, state)


def stored_in(
    caller: str, found: list, read: Callable[[Any], rx.ArrayTree], params: rx.Params
) -> list:
    """What states with paths store for the parameters, each of which only one may."""
    trees = [unjoined(read(x), params) for _, x in found]
    held = [{path for path, _ in jax.tree.leaves_with_path(tree)} for tree in trees]
    for i, j in it.combinations(range(len(held)), 2):
        if held[i] & held[j]:
            a, b = found[i][0], found[j][0]
            raise ValueError(
                f"`{caller}`: the states at {spell(a)} and {spell(b)} are of the same "
                "parameters; pass the part of the state that has one of them"
            )
    return trees


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

    Raises a `ValueError` if there is no such state, or two for one parameter.
    """
    first, second = fields
    found = present(name, State, state, fields)
    trees = stored_in(name, found, lambda x: getattr(x, first), params)
    for (_, x), stored in zip(found, trees, strict=True):
        scalar = getattr(x, second)
        params = rx.map_stored(
            lambda x, p, scalar=scalar: at(p, x, scalar), stored, first, params
        )
    return params


@rx.computed_wide
def mean_of(y, z, weight):
    """The x for which y = weight x + (1 - weight) z."""
    return z + (y - z) / weight  # exactly y where z = y
