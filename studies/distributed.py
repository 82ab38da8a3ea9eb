"""What a step communicates on a mesh, and how its state is sharded, beside Optax.

Run it with `python -m studies.distributed`; `--muon` compares the ways to distribute
Muon's matrices, and also times a step; `--matrices` has all optimizers of whole
matrices; `--markdown FILE` writes the table.

There are eight virtual devices, and every parameter is sharded over them, along one
axis or another.  The state is created by `jax.jit(tx.init)`, as in a program that does
not shard it explicitly.  All figures are read from compiled programs and are exact.
"""

import argparse
import inspect
import os
import statistics
import time
from collections.abc import Sequence
from typing import Any


os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from rich.console import Console
from rich.progress import track
from rich.table import Table

import stepax
import stepax.contrib
from stepax._engine.base.node import node_of
from stepax._engine.factories.registry import ROWS
from stepax._engine.inspect import open_components
from stepax._engine.step.rule import Rule
from stepax.distributed import Audit, audit, zero
from studies.trace import every, loss


COLUMNS = ("optimizer", "collectives", "bytes moved", "state", "work")
HEAD = (
    COLUMNS[0],
    *(x + y for x in COLUMNS[1:] for y in ("", ", Optax")),
)


MATRICES_HEAD = ("optimizer", "parameters", *COLUMNS[1:])
MUON_HEAD = ("matrices", "method", "collectives", "bytes moved", "work", "step, ms")


def parameters() -> dict:
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    keys = iter(jax.random.split(jax.random.key(0), 32))

    def new(shape, *spec):
        x = jax.random.normal(next(keys), shape)
        return jax.device_put(x, NamedSharding(mesh, P(*spec)))

    layer = lambda: {
        "up": new((64, 256), "data", None),
        "down": new((256, 64), None, "data"),
        "bias": new((256,), "data"),
    }
    return {f"layer{i}": layer() for i in range(8)}


def found(make, lib, params) -> Audit | str:
    """The audit of a step, or the error if it does not compile."""
    tx: Any = optax.with_extra_args_support(make(lib, 1e-3))
    read = {"value": jnp.float32(1), "grad": params, "value_fn": loss, "obj_fn": loss}
    try:
        return audit(tx, params, **read)
    except Exception as error:
        return type(error).__name__


def shown(x: Audit | str) -> list[str]:
    if isinstance(x, str):
        return [x, "", "", ""]
    kinds = ", ".join(f"{c.count} {c.kind}" for c in x.collectives) or "none"
    moved = sum(c.bytes for c in x.collectives)
    even = x.state_per_device * x.devices / x.state if x.state else 1
    return [kinds, f"{moved:,}", f"{even:.2f}", f"{x.share:.2f}"]


def table() -> list[list[str]]:
    params, lines = parameters(), []
    for name, make in track(every().items(), "compiling"):
        both = [shown(found(make, lib, params)) for lib in (stepax, optax)]
        pairs = zip(*both, strict=True)
        lines.append([name, *(x for pair in pairs for x in pair)])
    return lines


def muon_table() -> list[list[str]]:
    """16 matrices of 256 x 1,024: sharded, replicated, and under `zero`."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    ways: dict[str, Any] = {
        "stacked": lambda: stepax.contrib.muon(0.1),
        "one by one": lambda: stepax.contrib.muon(0.1, sharding="none"),
        "Optax": lambda: optax.contrib.muon(0.1),
    }
    lines = []
    for place, spec in (("sharded", P("data")), ("replicated", P()), ("zero", P())):
        there = NamedSharding(mesh, spec)
        p = {f"w{i}": jnp.ones((256, 1024)) * (i + 1) for i in range(16)}
        p = jax.tree.map(lambda x, there=there: jax.device_put(x, there), p)
        for way, make in ways.items():
            tx = zero(make(), mesh) if place == "zero" else make()
            cost = shown(audit(tx, p))
            lines.append([place, way, *cost[:2], cost[3], f"{milliseconds(tx, p):.0f}"])
    return lines


def works_on_matrices(factory: Any) -> bool:
    """Whether one of the rules of a factory has a stage on whole matrices."""
    nodes = [node_of(x.tx) for x in open_components(factory(1e-3), None).walk()]
    return any(isinstance(node, Rule) and node.batched for node in nodes)


def matrices_table() -> list[list[str]]:
    """16 matrices of 64 x 128 for each optimizer, placed in three ways."""
    rows = [row for row in ROWS.values() if row.kind == "optimizer"]
    takes = lambda row: "learning_rate" in inspect.signature(row.factory).parameters
    names = [x.name for x in rows if takes(x) and works_on_matrices(x.factory)]
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    lines = []
    for name in track(sorted(names), "compiling"):
        tx = ROWS[name].factory(1e-3)
        for way, spec in (("sharded", P("data")), ("replicated", P()), ("zero", P())):
            key = iter(jax.random.split(jax.random.key(0), 16))
            p = {f"w{i}": jax.random.normal(next(key), (64, 128)) for i in range(16)}
            p = jax.device_put(p, NamedSharding(mesh, spec))
            cost = audit(zero(tx, mesh) if way == "zero" else tx, p)
            lines.append([name, way, *shown(cost)])
    return lines


def milliseconds(tx: Any, p: Any, rounds: int = 5) -> float:
    """The median time of a step, without the first."""
    step, state, taken = jax.jit(tx.update), jax.jit(tx.init)(p), []
    for _ in range(rounds + 1):
        begin = time.perf_counter()
        _, state = jax.block_until_ready(step(p, state, p))
        taken.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(taken[1:])


def markdown(head: Sequence[str], lines: list[list[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markdown", help="write the table to this file")
    parser.add_argument("--muon", action="store_true", help="compare methods for Muon")
    parser.add_argument("--matrices", action="store_true", help="whole matrices only")
    args = parser.parse_args()
    if args.matrices:
        head, lines = MATRICES_HEAD, matrices_table()
    else:
        head, lines = (MUON_HEAD, muon_table()) if args.muon else (HEAD, table())
    if args.markdown:
        with open(args.markdown, "w") as file:
            file.write(markdown(head, lines))
    sheet = Table(*head)
    for line in lines:
        sheet.add_row(*line)
    Console(width=200).print(sheet)


if __name__ == "__main__":
    main()
