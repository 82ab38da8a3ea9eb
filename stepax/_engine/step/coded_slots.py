"""Slots in codes: how they start, and how they lie on a mesh.

The engine opens what is coded and stores the new value as it found the old one, as it
does with dtypes; see `kernel.py`.
"""

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import NamedSharding

from ..arrays.coding import Coded, Form, coded_as, coded_zeros, encoded
from ..arrays.placement import spread_over_mesh_of


# From shapes of parameters to the lengths of their last axes on one device, where these
# are known though the arrays are traced.
_KNOWN: ContextVar[Mapping[tuple, int] | None] = ContextVar("_KNOWN", default=None)


@contextlib.contextmanager
def knowing(parts: Mapping[tuple, int]) -> Iterator[None]:
    """Within, `length_of_part` knows these lengths, by the shapes of parameters."""
    token = _KNOWN.set(parts)
    try:
        yield
    finally:
        _KNOWN.reset(token)


def length_of_part(p: Any) -> int:
    """The length of the last axis of an array on one device, as far as it is known."""
    n: int = p.shape[-1]
    known = jax.typeof(p) if isinstance(p, Tracer) else p
    sharding: Any = getattr(known, "sharding", None)
    entries: Any = (*sharding.spec,) if isinstance(sharding, NamedSharding) else ()
    if len(entries) < len(p.shape) or entries[-1] is None:
        parts = _KNOWN.get() or {}
        return parts.get(p.shape, n)
    names = entries[-1] if isinstance(entries[-1], tuple) else (entries[-1],)
    devices = prod(sharding.mesh.shape[name] for name in names)
    return n // devices if n % devices == 0 else n


def zeros(p: Any, form: Form, in_leaf: bool) -> Coded:
    """Codes of zeros for a parameter, which nothing has to encode.

    in_leaf: whether they lie as the parameter; otherwise all devices share them.
    """
    # XLA would fold the maxima of a constant for seconds, and need all of it for that.
    put = _shard_like if in_leaf else spread_over_mesh_of
    made = [
        put(p, jnp.full(shape, value, dtype, device=_place(p, shape)))
        for shape, dtype, value in coded_zeros(p.shape, form)
    ]
    return coded_as(form, *made)


def coded(p: Any, x: Any, form: Form, in_leaf: bool) -> Coded:
    """The first value of a slot in codes."""
    # Behind a barrier, or XLA would fold a constant.
    x = jax.lax.optimization_barrier(x) if isinstance(x, Tracer) else x
    put = _shard_like if in_leaf else spread_over_mesh_of
    made = encoded(x, form)
    return coded_as(form, put(p, made.codes), put(p, made.scales))


def _place(p: Any, shape: tuple) -> Any:
    sharding = None if isinstance(p, Tracer) else getattr(p, "sharding", None)
    is_there = isinstance(p, jax.Array) and isinstance(sharding, NamedSharding)
    return sharding if is_there and len(shape) == p.ndim else None


def _shard_like(p: Any, x: jax.Array) -> jax.Array:
    """`x`, whose elements stand for runs of those of `p`, with the sharding of `p`."""
    # As `placement.shard_like`: a selection that XLA removes after it has propagated
    # the sharding.
    if not isinstance(p, Tracer):
        return x
    if any(jax.typeof(p).sharding.spec):
        return jax.sharding.reshard(x, jax.typeof(p).sharding)
    n, m = p.shape[-1], x.shape[-1]
    p = p if n == m else p.reshape(*p.shape[:-1], m, n // m).max(-1)
    return jnp.where(jnp.zeros_like(p, bool), p.astype(x.dtype), x)
