"""How islands meet: in parts of the parameters that take turns, and in few bits.

Streaming DiLoCo, Douillard et al., 2025 (arXiv:2501.18512), exchanges outer gradients
in 4 bits.  Unlike there, all islands round to multiples of a common unit, so that their
sum is exact in as many bits, and is one all-reduce; what an island rounds off goes into
its next exchange (error feedback: Seide et al., 2014; Karimireddy et al., 2019,
arXiv:1901.09847).
"""

from collections.abc import Mapping
from itertools import accumulate
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from .._engine import rules as rx
from .._engine.arrays.numerics import upcast
from .._engine.factories.ranges import whole_number


EXCHANGES = ("float32", "bfloat16", "int8", "int4")
# The largest sum of the codes of all islands.
_MOST = {"int8": 127, "int4": 7}


def averaged(x: jax.Array, axis_name: rx.AxisName, exchange: str) -> tuple:
    """The mean of `x` over islands, and what this island has rounded off.

    axis_name: mesh axis, or axes, of the islands; `None` for a single one.
    exchange: of `EXCHANGES`; complex numbers are exchanged whole.

    Raises a `ValueError` for more islands than the codes can be summed over.
    """
    islands = 1 if axis_name is None else int(jax.lax.psum(1, axis_name))
    total = (lambda y: y) if axis_name is None else lambda y: jax.lax.psum(y, axis_name)
    if exchange == "float32" or jnp.iscomplexobj(x):
        return total(x) / islands, jnp.zeros_like(x)
    if exchange == "bfloat16":
        code = x.astype(jnp.bfloat16)
        return (upcast(total(code)) / islands).astype(x.dtype), x - code.astype(x.dtype)
    most = _MOST[exchange] // islands
    if not most:
        raise ValueError(
            f"`exchange={exchange!r}` has sums of {_MOST[exchange]} islands at most, "
            f"but there are {islands}: use 'int8' or 'bfloat16'"
        )
    unit = _unit(x, most, axis_name)
    code = jnp.round(x / jnp.where(unit == 0, jnp.ones_like(unit), unit))
    whole = code.astype(jnp.int8)
    if exchange == "int8":
        summed = total(whole)
    else:
        summed = _unpacked(total(_packed(whole + most)), x.shape) - most * islands
    mean = summed.astype(x.dtype) * unit / islands
    return mean, x - code * unit


def _unit(x, most, axis_name):
    """One for each row: the largest entry on any island has the code `most`."""
    largest = jnp.max(jnp.abs(x), axis=-1, keepdims=True) if x.ndim else jnp.abs(x)
    if axis_name is not None:
        largest = jax.lax.pmax(largest, axis_name)
    return largest / most


def _packed(codes):
    """Two codes of 0 to 15 in a byte; a sum of bytes is then that of both."""
    flat = codes.reshape(codes.shape or (1,)).astype(jnp.uint8)
    flat = jnp.pad(flat, [(0, 0)] * (flat.ndim - 1) + [(0, flat.shape[-1] % 2)])
    return flat[..., ::2] + flat[..., 1::2] * jnp.uint8(16)


def _unpacked(codes, shape):
    pair = jnp.stack([codes % jnp.uint8(16), codes // jnp.uint8(16)], -1)
    row = pair.reshape(*codes.shape[:-1], -1)[..., : (shape or (1,))[-1]]
    return row.reshape(shape).astype(jnp.int8)


Part: TypeAlias = list[bool]  # for each leaf, `None` included


def parts_of(fragments: int | Mapping[str, int], params: rx.Params) -> list[Part]:
    """The leaves in each fragment: of neighbours, with about as many elements.

    Patterns of paths have fragments of their own, and so does the rest, which is one.

    Raises a `ValueError` for a pattern that matches nothing, and for fewer arrays than
    fragments.
    """
    leaves = jax.tree.leaves(params, is_leaf=rx.is_none)
    if isinstance(fragments, Mapping):
        counts = [whole_number("fragments", n) for n in fragments.values()] + [1]
        found = rx.selection.resolve_patterns([*fragments], params, "fragments", True)
    else:
        counts, found = [whole_number("fragments", fragments)], [0] * len(leaves)
    parts = []
    for i, count in enumerate(counts):
        inside = [j for j, x in enumerate(leaves) if found[j] == i and x is not None]
        if count > 1 and len(inside) < count:
            raise ValueError(
                f"`fragments` asks for {count} parts of {len(inside)} arrays: use fewer"
            )
        parts += _split([int(np.size(leaves[j])) for j in inside], inside, count)
    return [[j in part for j in range(len(leaves))] for part in parts]


def _split(sizes: list[int], inside: list[int], count: int) -> list[list[int]]:
    """Neighbours together; an array goes where its middle lies."""
    sizes = [max(size, 1) for size in sizes]  # the middle of an empty one is inside
    ends, parts = [*accumulate(sizes)], [[] for _ in range(count)]
    for j, size, end in zip(inside, sizes, ends, strict=True):
        parts[int((end - size / 2) / ends[-1] * count)].append(j)
    return [part for part in parts if part]


def only(part: Part, tree: rx.ArrayTree) -> rx.ArrayTree:
    """The tree with `None` for leaves outside of the part."""
    leaves, treedef = jax.tree.flatten(tree, is_leaf=rx.is_none)
    pairs = zip(leaves, part, strict=True)
    return treedef.unflatten(x if inside else None for x, inside in pairs)


def replaced(part: Part, tree: rx.ArrayTree, new: rx.ArrayTree) -> rx.ArrayTree:
    """The tree with the leaves of `new` inside of the part."""
    old, treedef = jax.tree.flatten(tree, is_leaf=rx.is_none)
    rows = zip(old, jax.tree.leaves(new, is_leaf=rx.is_none), part, strict=True)
    return treedef.unflatten(y if inside else x for x, y, inside in rows)
