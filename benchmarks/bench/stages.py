"""From a transformation to a program: the time it takes, and the resulting program."""

import functools as ft
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Built(NamedTuple):
    """A compiled step.

    seconds: seconds to trace, to lower and to compile.
    counts: equations, lines of StableHLO, fusions, and bytes per parameter as counted
        by XLA: accessed, in temporaries, and at peak.
    run: (carry, gradients) -> carry, lists of arrays; the carry is donated.
    kinds: path, shape and dtype of each array in the carry.
    traced: the traced step.
    """

    seconds: dict[str, float]
    counts: dict[str, float]
    run: Callable
    kinds: tuple
    traced: Any


def as_it_is(lib: Any, tree: Any) -> Any:
    return tree


def two_calls(lib: Any, tx: Any, gradients: Any, state: Any, params: Any) -> Any:
    """A step by `update` and `apply_updates`: the parameters and the state."""
    updates, state = tx.update(gradients, state, params)
    return lib.apply_updates(params, updates), state


def in_one(lib: Any, tx: Any, gradients: Any, state: Any, params: Any) -> Any:
    """The same by one call, which not every library has."""
    return lib.step(tx, gradients, state, params)


def step_of(
    tx: Any,
    lib: Any,
    params: Any,
    arrange: Callable = as_it_is,
    take: Callable = two_calls,
) -> tuple[Callable, Any]:
    """A step on lists of arrays, and the shapes of the first carry, as a tree.

    Lists, so that the programs of two libraries can share arrays in turn.

    take: `two_calls` or `in_one`.
    """
    hold = ft.partial(arrange, lib)
    held = jax.eval_shape(hold, params)
    first = held, jax.eval_shape(tx.init, held)
    outer, inner = jax.tree.structure(first), jax.tree.structure(params)

    def step(carry, gradients):
        params, state = outer.unflatten(carry)
        gradients = hold(inner.unflatten(gradients))
        return jax.tree.leaves(take(lib, tx, gradients, state, params))

    return step, first


def stages(step: Callable, first: Any, params: Any) -> tuple[dict, Any, Any]:
    """Seconds to trace and to lower a step, the traced step, and the lowered step."""
    arguments = jax.tree.leaves(first), jax.tree.leaves(params)
    begin = time.perf_counter()
    # A training step reads parameters that the optimizer does not, such as those that
    # have masters, so that their memory is reused as well.
    traced = jax.jit(step, donate_argnums=0, keep_unused=True).trace(*arguments)
    middle = time.perf_counter()
    lowered = traced.lower()
    end = time.perf_counter()
    return {"trace": middle - begin, "lower": end - middle}, traced, lowered


def build(
    tx: Any,
    lib: Any,
    params: Any,
    arrange: Callable = as_it_is,
    take: Callable = two_calls,
) -> Built:
    """Trace, lower and compile a step.

    params: a tree of shapes, as `jax.eval_shape` returns it.
    arrange: as in `Case`.
    take: `two_calls` or `in_one`.
    """
    step, first = step_of(tx, lib, params, arrange, take)
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
    return Built(seconds, counts, program, kinds_of(first), traced)


def bytes_of_first_call(
    tx: Any, lib: Any, params: Any, arrange: Callable, take: Callable
) -> float:
    """Bytes per parameter that the first call accesses, of several that make a step.

    The counters of the state are constants of this program, so that XLA removes what
    later calls do.
    """
    step, first = step_of(tx, lib, params, arrange, take)
    is_counter = [
        not x.shape and jnp.issubdtype(x.dtype, jnp.integer)
        for x in jax.tree.leaves(first)
    ]
    zero = lambda x: jnp.zeros(x.shape, x.dtype)

    def call(carry, gradients):
        pairs = zip(carry, is_counter, strict=True)
        return step([zero(x) if fixed else x for x, fixed in pairs], gradients)

    _, _, lowered = stages(call, first, params)
    cost = lowered.compile().cost_analysis()
    return cost["bytes accessed"] / sum(p.size for p in jax.tree.leaves(params))


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
