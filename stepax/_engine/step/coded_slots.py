"""Coded slots: their initial values and placement on a mesh, and steps by parts.

The engine decodes coded arrays and stores the new value in the form of the old one, as
it does with dtypes; see `kernel.py`.

On a CPU, XLA writes to memory what it takes the maxima of, so that a step on a whole
array needs temporaries of 10 bytes per element, which is more than the codes save.  If
that array is one of many, it shares them with others (`xla/order.py`); if it is most of
the model, parts of it are updated one after the other, which takes 2 bytes, for the new
codes.  That is slower: XLA runs such a loop on one core.
Parts would cut what a mesh shares out, and other devices need none.
"""

import itertools as it
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ..arrays.coding import (
    Coded,
    Form,
    as_found,
    coded_as,
    coded_zeros,
    decode_pieces,
    encode_by,
    encode_pieces,
    encoded,
    is_coded,
    opened,
    read,
    scales_of,
    whole_codes,
)
from ..arrays.placement import (
    is_on_mesh,
    placed,
    sharding_of,
    spec_of_runs,
    spread_over_mesh_of,
)


def zeros(p: Any, form: Form, in_leaf: bool) -> Coded:
    """Codes of zeros for a parameter, without encoding.

    in_leaf: whether they are sharded like the parameter; otherwise over all devices.
    """
    # XLA would take seconds to fold the maxima of a constant, and memory for all of it.
    arrays = coded_zeros(p.shape, form)
    (*_, (scales, *_)) = arrays
    made = [
        jnp.full(shape, value, dtype, device=_place(p, shape, scales))
        for shape, dtype, value in arrays
    ]
    return _put(p, coded_as(form, *made), in_leaf)


def coded(p: Any, x: Any, form: Form, in_leaf: bool) -> Coded:
    """The initial value of a coded slot."""
    # Behind a barrier, or XLA would fold a constant.
    x = jax.lax.optimization_barrier(x) if isinstance(x, Tracer) else x
    return _put(p, encoded(x, form), in_leaf)


def _put(p: Any, x: Coded, in_leaf: bool) -> Coded:
    if not in_leaf:
        return type(x)(*(spread_over_mesh_of(p, y) for y in x))
    return type(x)(*(_shard_like(p, y, x.scales.shape) for y in x))


def _place(p: Any, shape: tuple, scales: tuple) -> Any:
    sharding = None if isinstance(p, Tracer) else sharding_of(p)
    if not (isinstance(p, jax.Array) and isinstance(sharding, NamedSharding)):
        return None
    return NamedSharding(sharding.mesh, spec_of_coded(shape, scales, sharding))


def spec_of_coded(
    shape: tuple, scales: tuple, sharding: NamedSharding
) -> PartitionSpec:
    """The spec of codes or scales of this shape, for an array with a given sharding.

    scales: the shape of the scales.
    """
    # Blocks that shards cut are gathered for a step; only with automatic axes can XLA
    # still shard the codes.
    if AxisType.Explicit in sharding.mesh.axis_types:
        return spec_of_runs(scales, sharding)
    entries = [*spec_of_runs(shape, sharding)]
    while entries and entries[-1] is None:  # as XLA writes what it returns
        entries.pop()
    return PartitionSpec(*entries)


def _shard_like(p: Any, x: jax.Array, scales: tuple) -> jax.Array:
    """`x`, whose elements represent runs of those of `p`, with the sharding of `p`."""
    # As `placement.shard_like`: a selection that XLA removes after it has propagated
    # the sharding.
    if not isinstance(p, Tracer):
        return x
    sharding: Any = jax.typeof(p).sharding
    if any(sharding.spec):
        return placed(p, x, spec_of_coded(x.shape, scales, sharding))
    runs = [(m, n // m) for n, m in zip(p.shape, x.shape, strict=True)]
    p = p.reshape(*it.chain(*runs)).max(range(1, 2 * p.ndim, 2))
    return jnp.where(jnp.zeros_like(p, bool), p.astype(x.dtype), x)


# Numbers of elements: of the smallest array that is divided, and of its parts.
LARGE, PART = 2**25, 2**16


def number_of_parts(g: jax.Array, row: Sequence) -> int:
    """The number of parts in which a CPU steps on a gradient and its slots.

    row: for each rule its slots, whose elements depend only on corresponding elements.
    """
    forms = _forms(row)
    if g.size < LARGE or is_on_mesh(g) or not forms:
        return 1
    if len({form.block for form in forms if form.pieces > 1}) > 1:
        return 1
    unit = math.lcm(*(form.block for form in forms))
    if _by_rows(forms):
        unit = g.shape[-1] * math.lcm(*(form.rows for form in forms))
    blocks = g.size // unit
    most = max(1, g.size // PART)
    return next(n for n in range(most, 0, -1) if blocks % n == 0)


def in_parts(step: Callable, n: int, g: jax.Array, p: Any, row: Sequence) -> tuple:
    """`step(g, p, row)`, an update and the new slots, computed in n parts.

    For coded slots it gets the decoded numbers, in the shape of the part of `g`.
    """
    halves = [form.block // 2 for form in _forms(row) if form.pieces > 1]
    half = halves[0] if halves else None

    def part(_, given):
        leaves, treedef = jax.tree.flatten(given, is_leaf=is_coded)
        pieces = zip(*(_pieces(x, half) for x in leaves), strict=True)
        made = [step(*treedef.unflatten(piece)) for piece in pieces]
        old, treedef = jax.tree.flatten((given[0], given[2]), is_leaf=is_coded)
        new = zip(*map(treedef.flatten_up_to, made), strict=True)
        return None, treedef.unflatten(map(_whole, new, old))

    kept = 1 if _by_rows(_forms(row)) else 0  # the axes that stay as they are
    cut = jax.tree.map(
        lambda x: x.reshape(n, -1, *x.shape[x.ndim - kept :]), (g, p, row)
    )
    _, new = jax.lax.scan(part, None, cut)
    return jax.tree.map(lambda x, old: x.reshape(old.shape), new, (g, row))


def takes_two_passes(g: jax.Array, row: Sequence) -> bool:
    """Whether a GPU computes a step on a large gradient and its slots twice."""
    return not is_on_mesh(g) and bool(_forms(row))


def in_two_passes(step: Callable, g: jax.Array, p: Any, row: Sequence) -> tuple:
    """`step(g, p, row)`, once for the scales of new slots, and once more for the rest.

    On a GPU a maximum ends a kernel, and XLA would write intermediate results to memory
    for the next one.  Reading the arguments again takes less than two thirds of that.
    """

    def both(f, *trees):
        return jax.tree.map(f, *trees, is_leaf=is_coded)

    def taken(g, p, row, codes):
        def opened(old, codes):
            return read(codes, old.scales, old.form) if is_coded(old) else old

        return step(g, p, both(opened, row, codes))

    def scale(old, x):
        return scales_of(x, old.form) if is_coded(old) else None

    codes = both(lambda x: whole_codes(x) if is_coded(x) else None, row)
    scales = both(scale, row, taken(g, p, row, codes)[1])
    # A GPU removes the barrier only when it has divided the program into kernels.
    g, row, codes = jax.lax.optimization_barrier((g, row, codes))
    u, new = taken(g, p, row, codes)

    def finish(old, x, scale):
        return encode_by(x, scale, old.form) if is_coded(old) else x

    return u, both(finish, row, new, scales)


def _forms(row: Sequence) -> list[Form]:
    return [x.form for slots in row for x in slots if isinstance(x, Coded)]


def _by_rows(forms: Sequence[Form]) -> bool:
    return any(form.rows > 1 for form in forms)


def _pieces(x: Any, half: int | None) -> list[jax.Array]:
    """An array, or the first and the second halves of its blocks, apart."""
    if isinstance(x, Coded) and x.form.pieces > 1:
        return [y.reshape(-1, y.shape[-1]) for y in decode_pieces(x)]
    x = opened(x)
    if half is None:
        return [x]
    x = x.reshape(-1, 2, half)
    return [x[:, 0], x[:, 1]]


def _whole(pieces: Sequence[jax.Array], old: Any) -> Any:
    """The inverse of `_pieces`."""
    if isinstance(old, Coded) and old.form.pieces > 1:
        blocks = *old.shape[:-1], old.scales.shape[-1]
        return encode_pieces([x.reshape(*blocks, -1) for x in pieces], old.form)
    whole = pieces[0] if len(pieces) == 1 else _joined(*pieces)
    return as_found(whole.reshape(old.shape), old)


def _joined(first: jax.Array, second: jax.Array) -> jax.Array:
    # Not by `stack`, into whose loop XLA would fuse everything that is stacked.
    x = jnp.zeros((len(first), 2, first.shape[1]), first.dtype)
    for i, piece in enumerate((first, second)):
        x = jax.lax.dynamic_update_slice(x, piece[:, None], (0, i, 0))
    return x.ravel()
