"""The rule of a stack of arrays, made of that of one array.

Rules that are not elementwise, such as one that looks at the norm of an array, are
mapped over the stack by `jax.vmap`, so a stack is traced once.  Arrays that are shaped
like the parameter have their stack axes where it has them, all others in front.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from ..arrays.stacked import (
    Axes,
    alike_in_front,
    along_stack,
    from_front,
    mapped,
    one_of,
    shape_of_stack,
    to_front,
)
from ..base import ArrayTree


def for_stack(rule: Any, axes: Axes) -> Any:
    """The rule for stacks with these axes; itself without any, and if elementwise."""
    if not axes or rule.takes_joined:
        return rule
    slots = {name: slot_of_stack(slot, axes) for name, slot in rule.slots.items()}
    leaf = rule.leaf and _leaf(rule, axes)
    stat = rule.leaf_stat and _leaf_stat(rule, axes)
    # Joined arrays of a stack would have lost its axes.
    return replace(rule, leaf=leaf, leaf_stat=stat, slots=slots, elementwise=False)


def _leaf(rule: Any, axes: Axes) -> Callable:
    alike = [slot.alike for slot in rule.slots.values() if slot.in_leaf]

    def leaf(g, p, ctx, *slots):
        def one(g, *xs):
            xs = xs if rule.needs_params else (p, *xs)
            return rule.leaf(g, xs[0], ctx, *xs[1:])

        read = [to_front(p, axes)] if rule.needs_params else []
        pairs = zip(slots, alike, strict=True)
        given = [to_front(x, axes) if on else x for x, on in pairs]
        xs = alike_in_front([to_front(g, axes), *read, *given], axes)
        made = mapped(one, axes)(*xs)
        if not isinstance(made, tuple | list):
            return made
        is_like = [True, *alike, *[False] * len(made)]
        return tuple(
            from_front(x, axes) if on else x
            for x, on in zip(made, is_like, strict=False)
        )

    return leaf


def _leaf_stat(rule: Any, axes: Axes) -> Callable:
    alike = [slot.alike for slot in rule.slots.values()]

    def leaf_stat(g, p, scalars, *slots):
        def one(g, *xs):
            xs = (None, *xs) if p is None else xs
            return rule.leaf_stat(g, xs[0], scalars, *xs[1:])

        pairs = zip(slots, alike, strict=True)
        given = [to_front(x, axes) if on else x for x, on in pairs]
        read = [] if p is None else [to_front(p, axes)]
        xs = alike_in_front([to_front(g, axes), *read, *given], axes)
        stats = mapped(one, axes)(*xs)
        return jax.tree.map(lambda x: jnp.sum(x, range(len(axes))), stats)

    return leaf_stat


def slot_of_stack(slot: Any, axes: Axes) -> Any:
    """The slot of a stack, made of that of one array."""
    if not axes:
        return slot
    make = slot.make if slot.alike and slot.copies else _make(slot, axes)
    if slot.is_array:
        return replace(slot, make=make)
    encode = slot.encode and _encode(slot, axes)
    decode = slot.decode and _decode(slot, axes)
    return replace(slot, make=make, encode=encode, decode=decode)


def _make(slot: Any, axes: Axes) -> Callable:
    def make(p):
        if isinstance(p, jax.ShapeDtypeStruct):
            stack = shape_of_stack(p.shape, axes)
            made: ArrayTree = jax.tree.map(
                lambda x: jnp.broadcast_to(x, (*stack, *x.shape)),
                slot.make(one_of(p, axes)),
            )
        else:
            made = mapped(slot.make, axes)(to_front(p, axes))
        if slot.alike:
            return jax.tree.map(lambda x: from_front(x, axes), made)
        return jax.tree.map(lambda x: along_stack(p, x, axes), made)

    return make


def _encode(slot: Any, axes: Axes) -> Callable:
    encode: Any = slot.encode

    def encoded(x):
        return mapped(encode, axes)(to_front(x, axes) if slot.alike else x)

    return encoded


def _decode(slot: Any, axes: Axes) -> Callable:
    decode: Any = slot.decode

    def decoded(x):
        made = mapped(decode, axes)(x)
        return from_front(made, axes) if slot.alike else made

    return decoded
