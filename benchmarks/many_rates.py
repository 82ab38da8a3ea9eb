"""An eager loop over learning rates: time and memory per rate, compared with Optax.

    uv run python benchmarks/many_rates.py [rates]

For each rate, construct an optimizer and run `init` and two updates outside `jit`.
The first three rates compile what all of them share, and are not counted.
"""

import gc
import statistics
import sys
import time

import jax
import jax.numpy as jnp
import optax

import stepax


P = {"w": jnp.ones((64, 32)), "b": jnp.ones(32)}


def resident() -> float:
    """The resident memory of this process in MiB (Linux)."""
    with open("/proc/self/status") as lines:
        row = next(line for line in lines if line.startswith("VmRSS"))
    return int(row.split()[1]) / 1024


def run(library, rate: float) -> float:
    begin = time.perf_counter()
    tx = library.adamw(rate)
    state = tx.init(P)
    for _ in range(2):
        _, state = tx.update(P, state, P)
    jax.block_until_ready(state)
    return time.perf_counter() - begin


def main(rates: int) -> None:
    for name, library in (("optax", optax), ("stepax", stepax)):
        for i in range(3):
            run(library, 0.5 + i)
        gc.collect()
        before = resident()
        times = [run(library, 1e-3 * (i + 1)) for i in range(rates)]
        gc.collect()
        kept = (resident() - before) * 1024 / rates
        typical = statistics.median(times) * 1e3
        print(f"{name}: {typical:.1f} ms and {kept:.0f} KiB for each of {rates} rates")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
