"""The rule of a stack of arrays, made of that of one array.

Rules that are not elementwise, such as one that looks at the norm of an array, are
mapped over the stack by `jax.vmap`, so a stack is traced once.  Arrays that are shaped
like the parameter have their stack axes where it has them, all others in front.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from ..arrays import stacked
from ..base import ArrayTree


def for_stack(rule: Any, axes: stacked.Axes) -> Any:
    """The rule for stacks with these axes; itself without any, and if elementwise."""
    if not axes or rule.takes_joined:
        return rule
    slots = {name: slot_of_stack(slot, axes) for name, slot in rule.slots.items()}
    leaf = rule.leaf and _leaf(rule, axes)
    stat = rule.leaf_stat and _leaf_stat(rule, axes)
    # Joined arrays of a stack would have lost its axes.
    return replace(rule, leaf=leaf, leaf_stat=stat, slots=slots, elementwise=False)


def _leaf(rule: Any, axes: stacked.Axes) -> Callable:
    at = [_at(slot, axes) for slot in rule.slots.values() if slot.in_leaf]
    of_each = _of_each(rule.leaf, rule, axes, at)

    def leaf(*row):
        made = of_each(*row)
        if not isinstance(made, tuple | list):
            return made
        ends = [axes, *at, *[()] * len(made)]  # more than there should be is an error
        return tuple(map(stacked.from_front, made, ends))

    return leaf


def _leaf_stat(rule: Any, axes: stacked.Axes) -> Callable:
    at = [_at(slot, axes) for slot in rule.slots.values()]
    of_each = _of_each(rule.leaf_stat, rule, axes, at)

    def leaf_stat(*row):
        return jax.tree.map(lambda x: jnp.sum(x, range(len(axes))), of_each(*row))

    return leaf_stat


def _at(slot: Any, axes: stacked.Axes) -> stacked.Axes:
    """Where the stack axes of a slot are, if they are not in front already."""
    return axes if slot.alike else ()


def _of_each(
    f: Callable, rule: Any, axes: stacked.Axes, at: Iterable[stacked.Axes]
) -> Callable:
    """`f(g, p, shared, *slots)` of each array of stacks, with stack axes in front."""

    def of_each(g, p, shared, *slots):
        def one(g, *xs):
            xs = xs if rule.needs_params else (p, *xs)
            return f(g, xs[0], shared, *xs[1:])

        read = [stacked.to_front(p, axes)] if rule.needs_params else []
        xs = [stacked.to_front(g, axes), *read, *map(stacked.to_front, slots, at)]
        return stacked.mapped(one, axes)(*stacked.alike_in_front(xs, axes))

    return of_each


def slot_of_stack(slot: Any, axes: stacked.Axes) -> Any:
    """The slot of a stack, made of that of one array."""
    if not axes:
        return slot
    make = slot.make if slot.alike and slot.copies else _make(slot, axes)
    at = _at(slot, axes)

    def encode(x):
        return stacked.mapped(slot.encode, axes)(stacked.to_front(x, at))

    def decode(x):
        # Without an encoder it is stored as it is made, with its axes like the array.
        x = x if slot.encode else stacked.to_front(x, at)
        return stacked.from_front(stacked.mapped(slot.decode, axes)(x), at)

    coders = slot.encode and encode, slot.decode and decode
    return replace(slot, make=make, encode=coders[0], decode=coders[1])


def _make(slot: Any, axes: stacked.Axes) -> Callable:
    def make(p):
        if isinstance(p, jax.ShapeDtypeStruct):
            stack = stacked.shape_of_stack(p.shape, axes)
            made: ArrayTree = jax.tree.map(
                lambda x: jnp.broadcast_to(x, (*stack, *x.shape)),
                slot.make(stacked.one_of(p, axes)),
            )
        else:
            made = stacked.mapped(slot.make, axes)(stacked.to_front(p, axes))
        if slot.alike:
            return jax.tree.map(lambda x: stacked.from_front(x, axes), made)
        return jax.tree.map(lambda x: stacked.along_stack(p, x, axes), made)

    return make
