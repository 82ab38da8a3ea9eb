"""The memory of an optimizer on a mesh that need not exist, from shapes alone.

`init` is traced on an abstract mesh with explicit axes, so that types contain the
sharding of every array.  What a step needs besides depends on the compiler: `audit`
measures it, on virtual devices as well.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jax.tree_util import keystr, tree_flatten_with_path

from .._engine.arrays.numerics import has_dtype
from .._engine.arrays.placement import axis_names, axis_to_spread
from .._engine.base import GradientTransformation, Params, is_array, is_none
from .._engine.base.node import with_keywords
from .._engine.factories.registry import ROWS
from .._engine.functions.calls import explain_misuse, is_transformation, nearest
from .._engine.inspect import Printable, Table, show_bytes
from .._engine.trees.errors import list_some
from . import init_and_arrays
from .audit import bytes_of


MeshShape: TypeAlias = Mapping[str, int] | Mesh | AbstractMesh
Planned: TypeAlias = GradientTransformation | Callable[[AbstractMesh], Any]


@dataclass(frozen=True, repr=False)
class Plan(Printable):
    """The result of `plan`; printed as text, or in color by `rich`.

    mesh: names and sizes of the mesh axes.
    devices: number of devices.
    numbers: number of elements of all parameters.
    params, gradients, state: total bytes, counting replicas once.
    params_per_device, gradients_per_device, state_per_device: bytes on one device.
    host_per_device: bytes of the state of one device that are in host memory.
    """

    mesh: tuple[tuple[str, int], ...]
    devices: int
    numbers: int
    params: int
    params_per_device: int
    gradients: int
    gradients_per_device: int
    state: int
    state_per_device: int
    host_per_device: int

    def to_dict(self) -> dict[str, Any]:
        """The plan as a dictionary of dictionaries and integers."""
        return dataclasses.asdict(self) | {"mesh": dict(self.mesh)}

    def tables(self) -> list[Table]:
        axes = ", ".join(f"{name}={n}" for name, n in self.mesh)
        header = [f"on {self.devices} devices: {axes}", "one device", "all"]
        show = show_bytes
        rows = [
            ["parameters", show(self.params_per_device), show(self.params)],
            ["gradients", show(self.gradients_per_device), show(self.gradients)],
            ["state", show(self.state_per_device), show(self.state)],
        ]
        if self.host_per_device:
            rows.append(["- of it on the host", show(self.host_per_device), ""])
        return [(header, rows)]

    def __str__(self) -> str:
        return f"{super().__str__()}\n\n{self._rest}"

    __repr__ = __str__

    def __rich__(self) -> Any:
        found = super().__rich__()
        found.renderables.append(self._rest)
        return found

    @property
    def _rest(self) -> str:
        return _REST.format(min(self.devices, _MOST_VIRTUAL))


# JAX has no more virtual devices in a process: a mesh of fewer is measured instead.
_MOST_VIRTUAL = 2048
# Braces are filled with the number of devices.
_REST = """\
Temporaries, communication and work depend on the compiler; to measure them, start
Python with XLA_FLAGS=--xla_force_host_platform_device_count={} and pass `audit` the
shapes with their shardings on a mesh of these virtual devices."""


@explain_misuse
def plan(tx: Planned, shapes: Params, mesh_shape: MeshShape, specs: Any = None) -> Plan:
    """The memory that parameters, gradients and state take on a mesh, without devices.

    Uses shapes alone, for a mesh of any size: nothing is allocated or compiled, and
    the figures are exact for a mesh with explicit axes.  Gradients are assumed to be
    sharded like the parameters.  `audit` measures the temporaries, communication and
    work of a step, on virtual devices as well.

    tx: a transformation, or a function from the mesh to a transformation, as in
        `lambda mesh: zero(adamw(1e-3), mesh)`.
    shapes: arrays or `jax.ShapeDtypeStruct`s, as `jax.eval_shape` returns.
    mesh_shape: names and sizes of the mesh axes, as in `{"data": 64, "model": 8}`; or a
        mesh that has these axes.
    specs: a tree of `PartitionSpec`s, or a single one for a subtree or for all
        parameters; names of mesh axes shard each array along its longest axis that they
        divide; `None`, the default, replicates.

    Raises a `ValueError` for axes, shapes and specs that do not fit, with the path.
    """
    mesh = abstract_mesh(mesh_shape)
    made = _made(tx, mesh)
    params = placed(shapes, mesh, specs)
    with jax.sharding.use_abstract_mesh(mesh):
        state = _state(made, params)
    arrays = [x for x in jax.tree.leaves(params) if is_array(x)]
    total, part = bytes_of(arrays), bytes_of(arrays, True)
    on_host = [x for x in state if x.memory_space == jax.memory.Space.Host]
    return Plan(
        mesh=tuple(mesh.shape.items()),
        devices=mesh.size,
        numbers=sum(math.prod(x.shape) for x in arrays),
        params=total,
        params_per_device=part,
        gradients=total,
        gradients_per_device=part,
        state=bytes_of(state),
        state_per_device=bytes_of(state, True),
        host_per_device=bytes_of(on_host, True),
    )


def _made(tx: Any, mesh: AbstractMesh) -> Any:
    """The transformation, made for the mesh if it is a function from one."""
    is_factory = any(row.factory is tx for row in ROWS.values())
    is_function = callable(tx) and not is_transformation(tx) and not is_factory
    made: Any = tx(mesh) if is_function else tx
    return with_keywords(made, "`tx` of `plan`")


def _state(tx: Any, params: Params) -> list[Any]:
    """The types of the arrays of the state, with their shardings."""
    init, arrays = init_and_arrays(tx, params)
    try:
        return jax.make_jaxpr(init)(arrays).out_avals
    except Exception as error:
        if said := _explained(error):
            raise ValueError(f"`tx` cannot be planned: {said}") from error
        raise


def _explained(error: Exception) -> str:
    """What an error of JAX means here, and what to do; empty for an error of ours."""
    reason = str(error).partition("\n")[0]
    if type(error).__name__ == "ShardingTypeError":
        return (
            f"on a mesh with explicit axes JAX asks how to shard {reason}; use `audit` "
            "on devices, with automatic axes"
        )
    if isinstance(error, AssertionError) or "AbstractMesh(" in reason:
        return (
            "it was made for a mesh other than `mesh_shape`; pass a function of the "
            "mesh, as in `lambda mesh: zero(adamw(1e-3), mesh)`"
        )
    return ""


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
            f"{where} has fewer axes than its spec {spec}: give at most one "
            "element for each axis"
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
