"""The command `plan`: print the memory that an optimizer of a model takes."""

import argparse
import functools as ft
import inspect
import json
import math
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .. import adamw, low_bit_states, master_weights, partition
from .._engine.base.node import node_of
from .._engine.factories.registry import ROWS
from .._engine.inspect import open_components
from .._engine.step.rule import Rule
from ..contrib import MuonDimensionNumbers
from ..distributed import Plan, offload, plan, zero
from . import AXES, MODELS, is_matrix, specs


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


def _plain(name: str) -> Any:
    factory = ROWS[name].factory
    taken = inspect.signature(factory).parameters
    given: dict[str, Any] = {"learning_rate": 1e-3} if "learning_rate" in taken else {}
    for k in ("weight_dimension_numbers", "muon_weight_dimension_numbers"):
        if k in taken and name != "galore":
            given[k] = _labels(MuonDimensionNumbers(-2, -1), None)
    tx = factory(**given)
    nodes = [node_of(x.tx) for x in open_components(tx, None).walk()]
    on_matrices = any(isinstance(node, Rule) and node.batched for node in nodes)
    if set(given) > {"learning_rate"} or not on_matrices:
        return tx
    labels = _labels("matrix", "other")
    return partition({"matrix": tx, "other": adamw(1e-3)}, labels)


def _labels(matrix: Any, other: Any) -> Callable[[Any], Any]:
    def one(path, x):
        return matrix if is_matrix(path, x) else other

    return ft.partial(jax.tree_util.tree_map_with_path, one)


def planned(
    model: str,
    optimizer: str,
    mesh: dict[str, int],
    *,
    bits: int | None = None,
    masters: bool = False,
    sharded: bool = False,
    on_host: bool = False,
) -> Plan:
    """The plan of a model of the table, with the options of the command line."""

    def make(mesh):
        tx = _plain(optimizer)
        tx = low_bit_states(tx, bits) if bits else tx
        tx = master_weights(tx) if masters else tx
        tx = zero(tx, mesh, AXES[0]) if sharded else tx
        return offload(tx) if on_host else tx

    shapes = MODELS[model].shapes(jnp.bfloat16 if masters else jnp.float32)
    return plan(make, shapes, mesh, specs(shapes, mesh, is_split=not sharded))


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
    if args.json:
        named = {"model": args.model, "optimizer": args.optimizer}
        print(json.dumps(named | found.to_dict(), indent=2))
        return 0
    print(f"{args.model}, {found.numbers:,} parameters, {args.optimizer}\n\n{found}")
    return 0


def _check(mesh: dict[str, int], args: argparse.Namespace) -> None:
    number = math.prod(mesh.values())
    if args.devices and args.devices != number:
        raise ValueError(
            f"--mesh has {number} devices, but --devices is {args.devices}: give one "
            "of them, or the same number"
        )
    if number >= 2**31:
        raise ValueError(
            f"a mesh of {number} devices is too large: give at most 2^31 - 1"
        )
    if args.zero and AXES[0] not in mesh:
        raise ValueError(
            "--zero shards along `data`, which --mesh does not have: add data=N"
        )
