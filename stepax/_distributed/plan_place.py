"""Parameters on an abstract mesh, with checks of sizes, shapes and specs."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jax.tree_util import keystr, tree_flatten_with_path

from .._engine.arrays.numerics import has_dtype
from .._engine.arrays.placement import axis_names, axis_to_spread
from .._engine.base import Params, is_array, is_none
from .._engine.functions.calls import nearest
from .._engine.trees.errors import list_some


def abstract_mesh(sizes: Mapping[str, int] | Mesh | AbstractMesh) -> AbstractMesh:
    """A mesh of explicit axes that needs no devices."""
    if isinstance(sizes, Mesh | AbstractMesh):
        sizes = sizes.shape
    if not isinstance(sizes, Mapping):
        raise TypeError(
            f"`mesh_shape` is {sizes!r}, expected names and sizes of axes, as in "
            '{"data": 64, "model": 8}, or a mesh'
        )
    for name, n in sizes.items():
        if not isinstance(name, str) or type(n) is not int or n < 1:
            raise ValueError(
                f"axis {name!r} of `mesh_shape` has size {n!r}, expected a name and a "
                "whole number of devices, at least 1"
            )
    kinds = (AxisType.Explicit,) * len(sizes)
    return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=kinds)


def placed(shapes: Params, mesh: AbstractMesh, specs: Any) -> Params:
    """The shapes of a tree with their shardings."""
    leaves, treedef = tree_flatten_with_path(shapes, is_leaf=is_none)
    found = dict(tree_flatten_with_path(specs, is_leaf=_is_spec)[0])
    unread = set(found)
    new = []
    for path, x in leaves:
        # The spec of the path, or of its nearest ancestor that has one.
        above = [path[:n] for n in range(len(path), -1, -1) if path[:n] in found]
        unread.difference_update(above[:1])
        if not above and is_array(x):
            raise ValueError(
                f"the parameter at {_shown(path)} has no spec: give a `PartitionSpec`, "
                "or `None` to replicate it"
            )
        new.append(_placed(x, mesh, found[above[0]], path) if is_array(x) else x)
    if unread and leaves:
        raise ValueError(
            f"`specs` has {list_some(sorted(map(_shown, unread)))}, where `shapes` "
            "has no parameter"
        )
    return treedef.unflatten(new)


def _is_spec(x: Any) -> bool:
    names = type(x) is tuple and bool(x) and all(isinstance(k, str) for k in x)
    return x is None or names or isinstance(x, PartitionSpec | str)


def _shown(path: Any) -> str:
    return keystr(path) or "the root"


def _placed(x: Any, mesh: AbstractMesh, spec: Any, path: Any) -> jax.ShapeDtypeStruct:
    if not has_dtype(x):
        raise ValueError(
            f"`shapes` has {x!r} at {_shown(path)}, expected an array or "
            "`jax.ShapeDtypeStruct(shape, dtype)`"
        )
    spec = PartitionSpec() if spec is None else spec
    where = f"the parameter at {_shown(path)} of shape {x.shape}"
    if not isinstance(spec, PartitionSpec):
        names = (spec,) if isinstance(spec, str) else spec
        if not isinstance(names, tuple):
            raise TypeError(
                f"the spec at {_shown(path)} is {spec!r}, expected a `PartitionSpec`, "
                "names of mesh axes, or `None`"
            )
        _require_axes(mesh, names, where)
        at = axis_to_spread(x.shape, math.prod(mesh.shape[name] for name in names))
        whole = PartitionSpec()
        spec = whole if at is None else PartitionSpec(*[None] * at, names)
    _check(x.shape, mesh, spec, where)
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec))


def _check(shape: tuple, mesh: AbstractMesh, spec: PartitionSpec, where: str) -> None:
    entries = list(map(axis_names, spec))
    _require_axes(mesh, [name for names in entries for name in names], where)
    if len(entries) > len(shape):
        raise ValueError(
            f"{where} has fewer axes than its spec {spec}: give at most one entry for "
            "each axis"
        )
    for i, names in enumerate(entries):
        n = math.prod(mesh.shape[name] for name in names)
        if shape[i] % n:
            raise ValueError(
                f"{where} cannot be sharded as {spec}: axis {i} has length {shape[i]}, "
                f"which the {n} devices of {names} do not divide; shard another axis, "
                "or pad it"
            )


def _require_axes(mesh: AbstractMesh, names: Any, where: str) -> None:
    for name, times in Counter(names).items():
        if name not in mesh.shape:
            raise ValueError(
                f"{where} is to be sharded along {name!r}, but the mesh has the axes "
                f"{tuple(mesh.axis_names)}{nearest(name, mesh.axis_names)}"
            )
        if times > 1:
            raise ValueError(f"{where} has a spec that uses {name!r} {times} times")
