"""The cost of a step on a mesh that need not exist, from shapes alone.

A step is traced on an abstract mesh with explicit axes, so that types contain the
sharding of every array; `plan_count` reads them.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
from jax.sharding import AbstractMesh, Mesh

from .._engine.base import (
    GradientTransformation,
    OptState,
    Params,
    is_array,
    partition_arrays,
    with_keywords,
)
from .._engine.factories.registry import ROWS
from .._engine.functions.calls import explain_misuse, is_transformation
from .._engine.inspect import Printable, Table, show_bytes
from .._engine.xla.jaxprs import ClosedJaxpr
from . import init_and_arrays
from .audit import Collective, by_kind, bytes_of, computing, struct_of, table_of
from .plan_count import Exchange, count
from .plan_place import abstract_mesh, placed


MeshShape: TypeAlias = Mapping[str, int] | Mesh | AbstractMesh
Planned: TypeAlias = GradientTransformation | Callable[[AbstractMesh], Any]


@dataclass(frozen=True)
class Link:
    """The data that one device sends along some axes of a mesh in a step.

    axes: the mesh axes that the collectives cross.
    devices: number of devices that take part in each collective.
    count: number of collectives.
    bytes: the bytes that one device sends, if all devices form a ring.
    """

    axes: tuple[str, ...]
    devices: int
    count: int
    bytes: int


@dataclass(frozen=True, repr=False)
class Plan(Printable):
    """The result of `plan`; printed as text, or in color by `rich`.

    mesh: names and sizes of the mesh axes.
    devices: number of devices.
    numbers: number of elements of all parameters.
    params, gradients, state: total bytes, counting replicas once.
    params_per_device, gradients_per_device, state_per_device: bytes on one device.
    host_per_device: bytes of the state of one device that are in host memory.
    temporaries: bytes of intermediate arrays on one device, estimated: of matrix
        products, loops, sorts and moves, and what is computed from these.
    not_counted: names of what the step has that `temporaries` do not count, since a
        compiler may keep it in memory or not.
    work: floating-point operations of a step on one device.
    work_once: `work` with each loop counted once, as in an `Audit`.
    share: `work` relative to an even share; `devices` if the work is replicated.
    collectives: the collective operations of a step, as in an `Audit`.
    links: the collectives by mesh axes, in bytes that a device sends.
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
    temporaries: int
    not_counted: tuple[str, ...]
    work: float
    work_once: float
    share: float
    collectives: tuple[Collective, ...]
    links: tuple[Link, ...]

    @property
    def peak(self) -> int:
        """Bytes in the memory of one device during a step; updates replace gradients.

        A state in host memory is assumed to be on the device as a whole.
        """
        held = self.params_per_device + self.gradients_per_device
        return held + self.state_per_device + self.temporaries

    @property
    def traffic(self) -> int:
        """Bytes that a device reads and writes: all arrays once, temporaries twice."""
        read = self.params_per_device + self.gradients_per_device
        written = self.params_per_device
        return read + written + 2 * (self.state_per_device + self.temporaries)

    def seconds(
        self,
        *,
        link: float,
        memory: float,
        host: float | None = None,
        operations: float | None = None,
    ) -> dict[str, float]:
        """Lower bounds on the times of the parts of a step, by name; parts may overlap.

        link: bytes per second that a device sends to others.
        memory: bytes per second that a device reads and writes.
        host: bytes per second between a device and host memory; by default `link`.
        operations: operations per second of a device; if `None`, computation takes no
            time.
        """
        found = {
            "communication": sum(x.bytes for x in self.links) / link,
            "memory": self.traffic / memory,
        }
        if self.host_per_device:
            found["host"] = 2 * self.host_per_device / (host or link)
        if operations:
            found["computing"] = self.work / operations
        return found

    def to_dict(self) -> dict[str, Any]:
        """The plan as dictionaries, lists, strings and scalars."""
        found = dataclasses.asdict(self)
        lists = {k: list(found[k]) for k in ("collectives", "links", "not_counted")}
        for x in lists["links"]:
            x["axes"] = list(x["axes"])
        sums = {"peak": self.peak, "traffic": self.traffic}
        return found | lists | sums | {"mesh": dict(self.mesh)}

    def tables(self) -> list[Table]:
        axes = ", ".join(f"{name}={n}" for name, n in self.mesh)
        return [
            ([f"on {self.devices} devices: {axes}", "one device", "all"], self._held()),
            table_of(self.collectives),
            (["along", "devices", "collectives", "a device sends"], self._links()),
            (
                ["work of a device", "", "even share"],
                [["operations", f"{self.work:.4g}", f"{self.share:.3g} times"]],
            ),
        ]

    def _held(self):
        show = show_bytes
        rows = [
            ["parameters", show(self.params_per_device), show(self.params)],
            ["gradients", show(self.gradients_per_device), show(self.gradients)],
            ["state", show(self.state_per_device), show(self.state)],
        ]
        if self.host_per_device:
            rows.append(["- of it on the host", show(self.host_per_device), ""])
        return [
            *rows,
            ["temporaries, about", show(self.temporaries), ""],
            *([f"- without {name}", "", ""] for name in self.not_counted),
            ["during a step, about", show(self.peak), ""],
        ]

    def _links(self):
        rows = [
            [" x ".join(x.axes), str(x.devices), str(x.count), show_bytes(x.bytes)]
            for x in self.links
        ]
        return rows or [["none", "", "0", "0 B"]]


@explain_misuse
def plan(
    tx: Planned, shapes: Params, mesh_shape: MeshShape, specs: Any = None, **extra: Any
) -> Plan:
    """Memory, computation and communication of a step, without devices.

    Uses shapes alone, for a mesh of any size: nothing is allocated or compiled.  Counts
    and bytes are those that `audit` finds on devices, for a mesh with explicit axes;
    operations are counted before a compiler simplifies them, and `temporaries` are an
    estimate.

    tx: a transformation, or a function from the mesh to a transformation, as in
        `lambda mesh: zero(adamw(1e-3), mesh)`.
    shapes: arrays or `jax.ShapeDtypeStruct`s, as `jax.eval_shape` returns.
    mesh_shape: names and sizes of the mesh axes, as in `{"data": 64, "model": 8}`; or a
        mesh that has these axes.
    specs: a tree of `PartitionSpec`s, or a single one for a subtree or for all
        parameters; names of mesh axes shard each array along its longest axis that they
        divide; `None`, the default, replicates.
    extra: keywords of `update`.

    Raises a `ValueError` for axes, shapes and specs that do not fit, with the path.
    """
    mesh = abstract_mesh(mesh_shape)
    made = _made(tx, mesh)
    params = placed(shapes, mesh, specs)
    with jax.sharding.use_abstract_mesh(mesh):
        state, (whole, mine, host) = _state(made, params)
        done = count(_traced(made, params, state, extra), dict(mesh.shape))

    bare = jax.tree.map(struct_of, (params, state, extra))
    whole_step = _traced(computing(made), *bare)
    alone = count(whole_step, dict.fromkeys(mesh.shape, 1)).work
    arrays = [x for x in jax.tree.leaves(params) if is_array(x)]
    total, part = bytes_of(arrays), bytes_of(arrays, True)
    return Plan(
        mesh=tuple(mesh.shape.items()),
        devices=mesh.size,
        numbers=sum(math.prod(x.shape) for x in arrays),
        params=total,
        params_per_device=part,
        gradients=total,
        gradients_per_device=part,
        state=whole,
        state_per_device=mine,
        host_per_device=host,
        temporaries=done.temporaries,
        not_counted=tuple(sorted(done.not_counted)),
        work=done.work,
        work_once=done.work_once,
        share=done.work * mesh.size / alone if alone else 1.0,
        collectives=by_kind((x.kind, x.bytes) for x in done.exchanges),
        links=_by_axes(done.exchanges, mesh.shape),
    )


def _made(tx: Any, mesh: AbstractMesh) -> Any:
    """The transformation, made for the mesh if it is a function from one."""
    is_factory = any(row.factory is tx for row in ROWS.values())
    is_function = callable(tx) and not is_transformation(tx) and not is_factory
    made: Any = tx(mesh) if is_function else tx
    return with_keywords(made, "`tx` of `plan`")


def _state(tx: Any, params: Params) -> tuple[Any, tuple[int, int, int]]:
    """The shapes of the state; its bytes in total, on one device, and on its host."""
    init, arrays = init_and_arrays(tx, params)
    program, shapes = _program(init, arrays)
    leaves = jax.tree.leaves(shapes)
    pairs = zip(leaves, program.out_avals, strict=True)
    there = [x for x, aval in pairs if aval.memory_space == jax.memory.Space.Host]
    return shapes, (bytes_of(leaves), bytes_of(leaves, True), bytes_of(there, True))


def _traced(tx: Any, params: Params, state: OptState, extra: dict) -> ClosedJaxpr:
    """A step as a program, for gradients like the parameters."""
    arrays, rebuild = partition_arrays((params, params, state, extra))

    def step(arrays):
        gradients, params, state, extra = rebuild(arrays)
        return tx.update(gradients, state, params, **extra)

    return _program(step, arrays)[0]


def _program(f: Callable, arrays: list) -> tuple[ClosedJaxpr, Any]:
    """A function as a program, and the shapes of its results."""
    try:
        return jax.make_jaxpr(f, return_shape=True)(arrays)
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


def _by_axes(exchanges: list[Exchange], sizes: Mapping[str, int]) -> tuple[Link, ...]:
    found: dict[tuple, list[int]] = {}
    for x in exchanges:
        n = math.prod(sizes[name] for name in x.axes)
        found.setdefault((x.axes, n), []).append(_sent(x, n))
    pairs = sorted(found.items())
    return tuple(Link(axes, n, len(x), sum(x)) for (axes, n), x in pairs)


def _sent(x: Exchange, n: int) -> int:
    """The bytes that one of n devices in a ring sends."""
    if x.kind == "reduce-scatter":
        return x.bytes * (n - 1)
    if x.kind == "collective-permute":
        return x.bytes
    return math.ceil((2 if x.kind == "all-reduce" else 1) * x.bytes * (n - 1) / n)
