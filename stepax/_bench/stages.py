"""From a transformation to a program: the time it takes, and the resulting program."""

import functools as ft
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax


class Built(NamedTuple):
    """A compiled step.

    seconds: seconds to trace, to lower and to compile.
    counts: equations, lines of StableHLO, fusions, and bytes per parameter as counted
        by XLA: accessed, in temporaries, and at peak.
    run: (carry, gradients) -> carry, lists of arrays; the carry is donated.
    kinds: path, shape and dtype of each array in the carry.
    """

    seconds: dict[str, float]
    counts: dict[str, float]
    run: Callable
    kinds: tuple


def as_it_is(lib: Any, tree: Any) -> Any:
    return tree


def step_of(
    tx: Any, lib: Any, params: Any, arrange: Callable = as_it_is
) -> tuple[Callable, Any]:
    """A step on lists of arrays, and the shapes of the first carry, as a tree.

    Lists, so that the programs of two libraries can share arrays in turn.
    """
    hold = ft.partial(arrange, lib)
    held = jax.eval_shape(hold, params)
    first = held, jax.eval_shape(tx.init, held)
    outer, inner = jax.tree.structure(first), jax.tree.structure(params)

    def step(carry, gradients):
        params, state = outer.unflatten(carry)
        updates, state = tx.update(hold(inner.unflatten(gradients)), state, params)
        return jax.tree.leaves((lib.apply_updates(params, updates), state))

    return step, first


def stages(step: Callable, first: Any, params: Any) -> tuple[dict, Any, Any]:
    """Seconds to trace and to lower a step, the traced step, and the lowered step."""
    arguments = jax.tree.leaves(first), jax.tree.leaves(params)
    begin = time.perf_counter()
    traced = jax.jit(step, donate_argnums=0).trace(*arguments)
    middle = time.perf_counter()
    lowered = traced.lower()
    end = time.perf_counter()
    return {"trace": middle - begin, "lower": end - middle}, traced, lowered


def build(tx: Any, lib: Any, params: Any, arrange: Callable = as_it_is) -> Built:
    """Trace, lower and compile a step.

    params: a tree of shapes, as `jax.eval_shape` returns it.
    arrange: as in `Case`.
    """
    step, first = step_of(tx, lib, params, arrange)
    seconds, traced, lowered = stages(step, first, params)
    begin = time.perf_counter()
    program = lowered.compile()
    seconds["compile"] = time.perf_counter() - begin
    numbers = sum(p.size for p in jax.tree.leaves(params))
    counts = {
        "equations": len(traced.jaxpr.eqns),
        "lines": len(lowered.as_text().splitlines()),
        **counts_of(program, numbers),
    }
    return Built(seconds, counts, program, kinds_of(first))


def counts_of(program: Any, numbers: int) -> dict[str, float]:
    """XLA's statistics of a compiled step on this many parameters."""
    cost, memory = program.cost_analysis(), program.memory_analysis()
    return {
        "fusions": program.as_text().count(" fusion("),
        "bytes": cost["bytes accessed"] / numbers,
        "temporaries": memory.temp_size_in_bytes / numbers,
        "held": _held(memory) / numbers,
    }


def _held(memory):
    """The peak memory, with donated arrays counted once."""
    new = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return memory.argument_size_in_bytes + new + memory.temp_size_in_bytes


def kinds_of(tree: Any) -> tuple:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    show = ft.partial(jax.tree_util.keystr, simple=True, separator="/")
    return tuple((show(path), x.shape, str(x.dtype)) for path, x in leaves)
