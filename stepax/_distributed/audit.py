"""The cost of a step on a mesh, read from the compiled program."""

import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from .._engine import rules as rx
from .._engine.arrays.placement import sharding_of
from .._engine.inspect import Printable, Table, show_bytes
from . import init_shapes, init_shardings, mesh_of


@dataclass(frozen=True)
class Collective:
    """All collective operations of one kind in a program.

    kind: XLA's name, such as "all-reduce".
    count: number in the program; an operation in a branch or a loop counts once.
    bytes: size of their results on one device.
    """

    kind: str
    count: int
    bytes: int


@dataclass(frozen=True, repr=False)
class Audit(Printable):
    """The result of `audit`; printed as text, or in color by `rich`.

    devices: number of devices in the mesh.
    state: bytes of the state, counting replicas once.
    state_per_device: bytes of the state on the device that holds the most.
    work: floating-point operations of a step on one device.
    share: `work` relative to an even share; `devices` if the work is replicated.
    collectives: the collective operations of a step.
    temporaries: bytes of intermediate arrays on one device.
    """

    devices: int
    state: int
    state_per_device: int
    work: float
    share: float
    collectives: tuple[Collective, ...]
    temporaries: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The result as dictionaries, lists, strings and scalars."""
        return dataclasses.asdict(self)

    def tables(self) -> list[Table]:
        even = math.ceil(self.state / self.devices)
        whole = [
            ["state", show_bytes(self.state), ""],
            ["state per device", show_bytes(self.state_per_device), show_bytes(even)],
            ["temporaries", show_bytes(self.temporaries), ""],
            ["operations per device", f"{self.work:.4g}", f"{self.share:.3g} times"],
        ]
        found = [[x.kind, str(x.count), show_bytes(x.bytes)] for x in self.collectives]
        return [
            ([f"on {self.devices} devices", "", "even share"], whole),
            (
                ["collective", "count", "bytes on a device"],
                found or [["none", "0", "0 B"]],
            ),
        ]


@rx.explain_misuse
def audit(
    tx: rx.TransformationLike,
    params: rx.Params,
    *,
    state: rx.OptState | None = None,
    **extra_args: Any,
) -> Audit:
    """Memory, computation and communication of an optimizer step on a mesh.

    Compiles `update` for gradients sharded like the parameters; runs nothing.

    tx: a transformation, of any library.
    params: arrays on a mesh, or `jax.ShapeDtypeStruct`s with a sharding.
    state: arrays or shapes with shardings; by default the result of `jax.jit(tx.init)`.
    extra_args: keywords of `update`.

    Raises a `ValueError` for parameters that are not on a mesh, with the path.

    >>> mesh = jax.make_mesh((1,), ("data",))
    >>> everywhere = jax.NamedSharding(mesh, jax.P())
    >>> audit = stepax.distributed.audit(tx, jax.device_put(params, everywhere))
    """
    tx, mesh = rx.with_keywords(tx, "`tx` of `audit`"), mesh_of(params, None)
    shapes = jax.tree.map(_shape, params)
    state = _first_state(tx, shapes) if state is None else jax.tree.map(_shape, state)
    step = jax.jit(lambda g, s, p: tx.update(g, s, p, **extra_args))
    lowered = step.lower(shapes, jax.tree.map(_free, state), shapes)
    compiled = lowered.compile()
    # Without the mesh, as on a mesh a program may specify what each device does.
    bare = _computing(tx)
    step = jax.jit(lambda g, s, p: bare.update(g, s, p, **extra_args))
    try:
        with jax.set_mesh(Mesh(np.empty((), object), ())):
            lowered = step.lower(*jax.tree.map(struct_of, (shapes, state, shapes)))
    except ValueError:
        pass  # a part of `tx` brings its own mesh with explicit axes, like `zero`
    work, whole, n = _work(compiled), _work(lowered), mesh.size
    memory = compiled.memory_analysis()
    return Audit(
        n,
        bytes_of(jax.tree.leaves(state)),
        _most_bytes(state),
        work,
        work * n / whole if whole else 1.0,
        collectives(compiled.as_text() or ""),
        memory.temp_size_in_bytes if memory else 0,
    )


def _computing(tx: Any) -> Any:
    """`tx` without wrappers that only place it, such as `zero`; with the same state."""
    while isinstance(node := rx.node_of(tx), rx.Closure) and node.only_places:
        tx = node.callees[""]
    return tx


def struct_of(x, sharding=None):
    """The shape of an array, in a sharding if one is given; other leaves unchanged."""
    is_one = rx.is_array(x)
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding) if is_one else x


def _shape(x):
    return struct_of(x, sharding_of(x))


def _free(x):
    """The shape without a single-device sharding, since JAX may move such arrays."""
    is_placed = isinstance(sharding_of(x), NamedSharding)
    return x if is_placed else struct_of(x)


def _first_state(tx, params):
    shapes, shardings = init_shapes(tx, params), init_shardings(tx, params)
    return jax.tree.map(struct_of, shapes, shardings)


def bytes_of(arrays: Iterable[Any], is_part: bool = False) -> int:
    """Bytes of some arrays, or of the shards of them that one device holds."""
    found = 0
    for x in arrays:
        sharding = x.sharding if is_part else None
        shape = x.shape if sharding is None else sharding.shard_shape(x.shape)
        found += math.prod(shape) * x.dtype.itemsize
    return found


def _most_bytes(state) -> int:
    held = defaultdict(int)
    for x in jax.tree.leaves(state):
        for device in x.sharding.device_set:
            held[device] += bytes_of([x], True)
    return max(held.values(), default=0)


def _work(program) -> float:
    """Floating-point operations, on one device if the program is compiled."""
    found = program.cost_analysis() or {}
    return float(found.get("flops", 0.0))


_KINDS = (
    "all-reduce",
    "all-gather",
    "all-to-all",
    "reduce-scatter",
    "collective-permute",
    "collective-broadcast",
)
_CALL = re.compile(rf"= (\(.*?\)|\S+) ({'|'.join(_KINDS)})(?:-start)?\(")
_ARRAY = re.compile(r"\b(pred|[a-z]+\d+\w*)\[([\d,]*)\]")
_BITS = re.compile(r"\d+")


def collectives(text: str) -> tuple[Collective, ...]:
    """The collectives in the text of a compiled program, by kind."""
    sizes: dict[str, list[int]] = defaultdict(list)
    for call in filter(None, map(_CALL.search, text.splitlines())):
        sizes[call[2]].append(sum(map(_bytes_of, _ARRAY.findall(call[1]))))
    return tuple(Collective(k, len(x), sum(x)) for k, x in sorted(sizes.items()))


def _bytes_of(array: tuple[str, str]) -> int:
    name, shape = array
    bits = _BITS.search(name)
    numbers = math.prod(map(int, filter(None, shape.split(","))))
    return math.ceil(numbers * (int(bits[0]) if bits else 8) / 8)
