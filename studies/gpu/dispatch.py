"""How long a host takes to dispatch a step on the arrays of GPT-2, and a GPU to run it.

Run it with `python -m studies.gpu.dispatch`.  Printed are the milliseconds of a step of
AdamW, and those until the host could go on, in these forms:

- compiled as usual, and without command buffers, which are CUDA graphs;
- a program that returns the same arrays, all but one unchanged;
- twenty steps in one loop.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.bench.cases import CASES
from benchmarks.bench.measure import IN_ONE, installed, numbers, ways
from benchmarks.bench.shapes import SHAPES, abstract
from benchmarks.bench.stages import step_of


ROUNDS, CALLS, LOOP = 9, 30, 20


def forms(step: Callable, arguments: tuple) -> dict[str, tuple[Callable, int]]:
    """By name: a program, and how many steps it takes."""

    def identity(carry, gradients):
        return [carry[0] + 0, *carry[1:]]

    def loop(carry, gradients):
        one = lambda i, carry: step(carry, gradients)
        return jax.lax.fori_loop(0, LOOP, one, carry)

    def compiled(f, **options):
        lowered = jax.jit(f, donate_argnums=0).lower(*arguments)
        return lowered.compile(compiler_options=options or None)

    return {
        "a step": (compiled(step), 1),
        "without command buffers": (
            compiled(step, xla_gpu_enable_command_buffer=""),
            1,
        ),
        "the same arrays, unchanged": (compiled(identity), 1),
        f"one of {LOOP} steps in a loop": (compiled(loop), LOOP),
    }


def milliseconds(program: Callable, steps: int, carry: list, gradients: list) -> tuple:
    """Of a step: until it is done, and until the host can go on."""
    calls, done, free = max(3, CALLS // steps), [], []
    for i in range(1 + ROUNDS):
        begin = time.perf_counter()
        for _ in range(calls):
            carry = program(carry, gradients)
        returned = time.perf_counter() - begin
        jax.block_until_ready(carry)
        if i:  # the first warms up
            done.append((time.perf_counter() - begin) / calls / steps)
            free.append(returned / calls / steps)
    return 1e3 * statistics.median(done), 1e3 * statistics.median(free)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--divisor", type=int, default=1, help="of all widths")
    divisor = parser.parse_args().divisor
    case, shape = CASES["adamw"], SHAPES["gpt2"]
    way: Any = ways(case, installed())[IN_ONE]
    params = abstract(shape.make(divisor))
    step, first = step_of(way.make(), way.lib, params, case.arrange, way.take)
    p, g = numbers(shape, divisor, case.dtype)
    gradients = list(map(jnp.asarray, jax.tree.leaves(g)))
    print(jax.devices()[0].device_kind, jax.__version__)
    arguments = jax.tree.leaves(first), jax.tree.leaves(params)
    for name, (program, steps) in forms(step, arguments).items():
        own = jax.tree.map(jnp.copy, p)
        carry = jax.tree.leaves((own, jax.tree.map(jnp.copy, way.make().init(own))))
        done, free = milliseconds(program, steps, carry, gradients)
        print(f"{name:30} {done:.3f} ms; the host {free:.3f}", flush=True)


if __name__ == "__main__":
    main()
