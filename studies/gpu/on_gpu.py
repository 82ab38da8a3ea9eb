"""Compare optimizers on a GPU with the same on a CPU, and measure `offload`.

Run it with `python -m studies.gpu.on_gpu`, or with words: then only optimizers with one
of them in their name are compared.  See `gpu.py` for the time of a step.

Each takes three jitted steps on both devices, in float32 and bfloat16, from the same
data.  Printed is the largest difference of an update, relative to the largest entry of
that update; both use full float32 precision for matrix products.

Programs that are otherwise on a GPU, for large arrays alone, are compared as well.
"""

import concurrent.futures
import functools as ft
import statistics
import sys
from pathlib import Path


sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

import jax
import jax.numpy as jnp
import numpy as np
from cases import TREES, gradients, make, rows
from keywords import keywords

import stepax
from benchmarks.bench.measure import timed


LIMIT = {"float32": 1e-4, "bfloat16": 0.1}


def steps(row, device, dtype):
    """The updates of three steps."""
    with jax.default_device(device), jax.default_matmul_precision("highest"):
        p = jax.tree.map(lambda x: jnp.asarray(x, dtype), TREES["dict"]())
        tx = make(row)
        step = jax.jit(lambda g, s, p: tx.update(g, s, p, **keywords(g)))
        state, found = tx.init(p), []
        for i in range(3):
            g = jax.tree.map(lambda x: x.astype(dtype), gradients(p, i))
            u, state = step(g, state, p)
            found += [np.asarray(x, "float64") for x in jax.tree.leaves(u)]
    return found


def distance(ours, theirs):
    apart = (np.max(np.abs(a - b)) for a, b in zip(ours, theirs, strict=True))
    return max(a / (np.max(np.abs(b)) or 1) for a, b in zip(apart, theirs, strict=True))


def apart(row, dtype):
    """The distance between the two devices, or the error as text."""
    try:
        gpu, cpu = jax.devices()[0], jax.devices("cpu")[0]
        return distance(steps(row, gpu, dtype), steps(row, cpu, dtype))
    except Exception as error:  # of any kind; the others continue
        return f"{type(error).__name__}: {str(error)[:300]}"


def compare(dtype, some):
    with concurrent.futures.ThreadPoolExecutor(12) as pool:  # most of it is compiling
        found = list(pool.map(ft.partial(apart, dtype=dtype), some))
    names = [row.name for row in some]
    for name, x in zip(names, found, strict=True):
        if isinstance(x, str):
            print(f"  {name}: {x}")
    numbers = {
        k: x for k, x in zip(names, found, strict=True) if not isinstance(x, str)
    }
    far = [k for k, x in numbers.items() if not x <= LIMIT[dtype]]
    print(f"{dtype}: {len(numbers)} of {len(some)}, {len(far)} beyond {LIMIT[dtype]}")
    for name in sorted(numbers, key=lambda k: -numbers[k])[: max(12, len(far))]:
        print(f"  {name:40} {numbers[name]:.1e}", flush=True)


LARGE = {
    "MultiSteps, a branch of three sides": lambda: stepax.MultiSteps(
        stepax.adamw(1e-2), 2
    ),
    "low_bit_states, two passes": lambda: stepax.low_bit_states(stepax.adamw(1e-2)),
    "low_bit_states of 4 bits": lambda: stepax.low_bit_states(stepax.adamw(1e-2), 4),
}


def stepped(tx, device, side=4096, times=4):
    """A large parameter after some steps in one."""
    with jax.default_device(device):
        draw = lambda seed: np.random.default_rng(seed).normal(size=(side, side))
        p = {"w": jnp.asarray(draw(0), "float32")}
        step = jax.jit(lambda p, s, g: stepax.step(tx, g, s, p), donate_argnums=(0, 1))
        state = tx.init(p)
        for i in range(times):
            p, state = step(p, state, {"w": jnp.asarray(draw(1 + i % 2), "float32")})
        return np.asarray(p["w"])


def compare_large():
    """The mean difference, relative to the mean step of 0.01 or a few of these.

    Codes on both sides of a rounding make single elements differ.
    """
    for name, new in LARGE.items():
        gpu, cpu = (
            stepped(new(), x) for x in (jax.devices()[0], jax.devices("cpu")[0])
        )
        print(f"{name}: {np.mean(np.abs(gpu - cpu)) / 1e-2:.1e}", flush=True)


def median(f, rounds=15):
    return 1e3 * statistics.median(timed(f)[1] for _ in range(rounds))


def offloaded(n=16, side=2000):
    """AdamW with its state on the host: bit-identical; its time and memory."""
    params = {f"w{i}": jnp.full((side, side), 0.5) for i in range(n)}
    g = jax.tree.map(lambda x: 0.1 * x, params)
    found = {}
    for name, tx in {
        "on the device": stepax.adamw(1e-3),
        "offloaded": stepax.distributed.offload(stepax.adamw(1e-3)),
    }.items():
        carry = [jax.tree.map(jnp.copy, params), tx.init(params)]
        kinds = {x.sharding.memory_kind for x in jax.tree.leaves(carry[1])}

        @jax.jit
        def step(p, s, tx=tx):
            u, s = tx.update(g, s, p)
            return stepax.apply_updates(p, u), s

        def run(carry=carry, step=step):
            carry[:] = step(*carry)
            return carry

        run()
        ms = median(run)
        found[name] = jax.tree.leaves(carry[0])
        memory = step.lower(*carry).compile().memory_analysis()
        print(f"{name}: state in {kinds}, {ms:.2f} ms, {memory}")
    same = all(map(np.array_equal, found["on the device"], found["offloaded"]))
    print(f"offload: {'the same bits' if same else 'OTHER BITS'}")


def main():
    print(jax.__version__, jax.devices(), sys.version.split()[0], flush=True)
    offloaded()
    compare_large()
    words = sys.argv[1:] or [""]
    some = [x.values[0] for x in rows()]
    some = [x for x in some if any(word in x.name for word in words)]
    for dtype in LIMIT:
        compare(dtype, some)


if __name__ == "__main__":
    main()
