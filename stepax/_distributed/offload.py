"""Keeping the optimizer state in host memory."""

import functools as ft
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec

from .._engine.arrays.numerics import is_numeric
from .._engine.arrays.placement import mesh_sharding, put_on
from .._engine.base.protocol import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    is_array,
    require_transformation,
    transformation,
    with_extra_args_support,
)
from .._engine.factories.recipe import recipe


@recipe
def offload(
    tx: GradientTransformation, memory_kind: str = "pinned_host"
) -> GradientTransformationExtraArgs:
    """Keep the state of an optimizer in host memory.

    Each step transfers it to the device and back, which the compiler may overlap with
    other computation.  A jitted `init` needs the whole state on the device once.

    tx: a transformation, of any library.
    memory_kind: "pinned_host".

    Raises a `ValueError` for another `memory_kind`, and a `TypeError` if `tx` is not a
    transformation.
    """
    require_transformation(tx, "`tx` of `offload`")
    check_memory_kind(memory_kind)
    inner = with_extra_args_support(tx)

    def init(params):
        return _map(ft.partial(_to_host, memory_kind, params), inner.init(params))

    def update(updates, state, params=None, **extra_args):
        here = _map(lambda x: jax.device_put(x, jax.memory.Space.Device), state)
        updates, new = inner.update(updates, here, params, **extra_args)
        return updates, _map(ft.partial(_to_host, memory_kind, params), new)

    return transformation(init, update, inner={"": inner}, only_places=True)


def check_memory_kind(kind: str | None) -> None:
    if kind not in (None, "pinned_host"):
        raise ValueError(
            f"`memory_kind` is {kind!r}, expected 'pinned_host', the memory kind in "
            "which a jitted program may return arrays"
        )


def _map(f: Callable, tree: Any) -> Any:
    return jax.tree.map(lambda x: f(x) if is_array(x) and is_numeric(x) else x, tree)


def _to_host(memory_kind: str, params: Any, x: Any) -> Any:
    if isinstance(x, Tracer):
        return jax.device_put(x, jax.memory.Space.Host)
    x = jnp.asarray(x)
    if isinstance(x.sharding, NamedSharding):
        return jax.device_put(x, x.sharding.with_memory_kind(memory_kind))
    # A committed array stays on its devices: put counts where the parameters are.
    at = mesh_sharding(params)
    at = x.sharding if at is None else NamedSharding(at.mesh, PartitionSpec())
    return put_on(x, at.with_memory_kind(memory_kind))
