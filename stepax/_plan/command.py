"""The command `plan`: print the cost of a step of a model."""

import argparse
import inspect
import json
import math
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .. import adamw, low_bit_states, master_weights, partition
from .._engine.factories.registry import ROWS
from .._engine.inspect.components import open_components
from .._engine.inspect.tables import Printable, Table
from .._engine.step.plan import node_of
from .._engine.step.rule import Rule
from ..contrib import MuonDimensionNumbers
from ..distributed import Plan, offload, plan, zero
from .models import AXES, MODELS, matrices, specs


def optimizers() -> list[str]:
    """The names of the optimizers that only need a learning rate."""
    return sorted(
        row.name
        for row in ROWS.values()
        if row.kind == "optimizer" and _needed(row.factory) <= {"learning_rate"}
    )


def _needed(factory: Callable) -> set[str]:
    found = inspect.signature(factory).parameters.values()
    return {x.name for x in found if x.default is x.empty}


def transformation(
    name: str,
    *,
    mesh: Any,
    bits: int | None = None,
    masters: bool = False,
    sharded: bool = False,
    on_host: bool = False,
) -> Any:
    """An optimizer in its wrappers, according to the options of the command."""
    tx = _plain(name)
    tx = low_bit_states(tx, bits) if bits else tx
    tx = master_weights(tx) if masters else tx
    tx = zero(tx, mesh, AXES[0]) if sharded else tx
    return offload(tx) if on_host else tx


def _plain(name: str) -> Any:
    factory = ROWS[name].factory
    taken = inspect.signature(factory).parameters
    given: dict[str, Any] = {"learning_rate": 1e-3} if "learning_rate" in taken else {}
    for k in ("weight_dimension_numbers", "muon_weight_dimension_numbers"):
        if k in taken and name != "galore":
            given[k] = matrices(MuonDimensionNumbers)
    tx = factory(**given)
    if set(given) > {"learning_rate"} or not _works_on_matrices(tx):
        return tx
    label = lambda numbers: "other" if numbers is None else "matrix"
    labels = lambda params: jax.tree.map(
        label, matrices(MuonDimensionNumbers)(params), is_leaf=_is_numbers
    )
    return partition({"matrix": tx, "other": adamw(1e-3)}, labels)


def _is_numbers(x: Any) -> bool:
    return x is None or isinstance(x, MuonDimensionNumbers)


def _works_on_matrices(tx: Any) -> bool:
    nodes = [node_of(x.tx) for x in open_components(tx, None).walk()]
    return any(isinstance(node, Rule) and node.batched for node in nodes)


def planned(
    model: str,
    optimizer: str,
    mesh: dict[str, int],
    *,
    masters: bool = False,
    sharded: bool = False,
    **options: Any,
) -> Plan:
    """The plan of a model of the table.

    options: others of `transformation`.
    masters: whether parameters are bfloat16, with float32 master weights in the state.
    sharded: whether to use `zero`, with parameters replicated along the axis `data`;
        otherwise these are sharded along it.
    """
    shapes = MODELS[model].shapes(jnp.bfloat16 if masters else jnp.float32)
    options |= {"masters": masters, "sharded": sharded}
    return plan(
        lambda mesh: transformation(optimizer, mesh=mesh, **options),
        shapes,
        mesh,
        specs(shapes, mesh, is_split=not sharded),
    )


class _Times(Printable):
    """The times of the parts of a step, with the rates that they are computed from."""

    def __init__(self, seconds: dict[str, float], rates: dict[str, str]):
        self.seconds, self.rates = seconds, rates

    def tables(self) -> list[Table]:
        show = lambda k, x: [k, f"{1e3 * x:,.4g} ms", self.rates[k]]
        rows = [show(k, x) for k, x in self.seconds.items()]
        return [(["least time of a step", "", "at"], rows)]


def run(args: argparse.Namespace) -> int:
    """Print the plan; the exit code is 2 if the options do not fit together."""
    mesh = args.mesh or {AXES[0]: args.devices or 8}
    try:
        _check(mesh, args)
        found = planned(
            args.model,
            args.optimizer,
            mesh,
            bits=args.bits,
            masters=args.masters,
            sharded=args.zero,
            on_host=args.offload,
        )
    except (TypeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    seconds = found.seconds(
        link=1e9 * args.bandwidth,
        memory=1e9 * args.memory_bandwidth,
        host=1e9 * args.host_bandwidth,
        operations=1e12 * args.teraflops,
    )
    if args.json:
        named = {"model": args.model, "optimizer": args.optimizer}
        print(json.dumps(named | found.to_dict() | {"seconds": seconds}, indent=2))
        return 0
    rates = {
        "communication": f"{args.bandwidth:g} GB/s to other devices",
        "memory": f"{args.memory_bandwidth:g} GB/s of device memory",
        "host": f"{args.host_bandwidth:g} GB/s to host memory",
        "computing": f"{args.teraflops:g} teraflop/s",
    }
    print(f"{args.model}, {found.numbers:,} parameters, {args.optimizer}\n")
    print(found, _Times(seconds, rates), sep="\n\n")
    return 0


def _check(mesh: dict[str, int], args: argparse.Namespace) -> None:
    number = math.prod(mesh.values())
    if args.devices and args.devices != number:
        raise ValueError(
            f"--mesh has {number} devices, but --devices is {args.devices}: give one "
            "of them, or the same number"
        )
    if args.zero and AXES[0] not in mesh:
        raise ValueError(
            "--zero shards along `data`, which --mesh does not have: add data=N"
        )
