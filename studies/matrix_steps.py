"""The time of a step of matrix optimizers, beside that of its matrix products alone.

Run it with `python -m studies.matrix_steps`, or with names and a number of layers:
`python -m studies.matrix_steps soap muon --layers 4`.

Parameters are the matrices of a small GPT-2 of width 256.  Each row times `--steps`
steps of both programs in turn, on donated arrays, and gives the medians, and that of
the ratios, of time and of processor time: the latter says more on a busy machine.  The
last column is the time of a step that renews bases.
"""

import argparse
import os
import time
from collections.abc import Callable
from typing import Any


# On a busy machine OpenBLAS, which decomposes matrices for JAX, waits for its threads
# for most of the time.  It reads this when it is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import jax.numpy as jnp
import numpy as np

import stepax
import stepax.contrib


SHAPES = {"qkv": (256, 768), "out": (256, 256), "up": (256, 1024), "down": (1024, 256)}
# For one matrix G of (m, n): how often G G^T, or a product of its size with a matrix on
# the left, and likewise on the right, without those that renew anything.
PRODUCTS = {"soap": 3, "kl_shampoo": 3, "kl_soap": 3, "splus": 3}
# Those whose products are of the Newton-Schulz iteration alone, of five steps.
ITERATED = ("muon", "normuon")
NEVER = 10**6


def params(layers: int) -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    draw = lambda shape: jnp.asarray(rng.normal(size=shape) / 50, jnp.float32)
    names = [(f"{k}{i}", shape) for i in range(layers) for k, shape in SHAPES.items()]
    return {name: draw(shape) for name, shape in names}


def step_of(tx: Any) -> Callable:
    def step(g, state, p):
        u, state = tx.update(g, state, p)
        return state, stepax.apply_updates(p, u)

    return jax.jit(step, donate_argnums=(1, 2))


def products(times: int) -> Callable:
    """As many products with one square matrix on each side, and nothing else."""

    @jax.jit
    def run(p, lefts, rights):
        def one(x, left, right):
            for _ in range(times - 1):
                x = left @ x @ right
            return x, x @ x.T, x.T @ x

        return jax.tree.map(one, p, lefts, rights)

    return run


def iterated(steps: int = 5) -> Callable:
    """The products of the Newton-Schulz iteration, and nothing else."""

    @jax.jit
    def run(p, lefts, rights):
        def one(x):
            for _ in range(steps):
                gram = x @ x.T
                x = gram @ gram @ x
            return x

        return jax.tree.map(lambda x: one(x if len(x) <= len(x.T) else x.T), p)

    return run


def seconds(f: Callable[[], Any]) -> np.ndarray:
    """The time that a call takes, and the processor time."""
    start = np.array([time.perf_counter(), time.process_time()])
    jax.block_until_ready(f())
    return np.array([time.perf_counter(), time.process_time()]) - start


def measure(name: str, layers: int, steps: int) -> tuple[float, ...]:
    """Milliseconds of a step, of its products; two ratios; of one that renews bases."""
    factory = getattr(stepax.contrib, name)
    every = "inverse_every" if name == "splus" else "precondition_frequency"
    tx = factory(1e-3, **({} if name in ITERATED else {every: steps + 2}))
    p = params(layers)
    g = jax.tree.map(lambda x: 0.1 * x, p)
    lefts = jax.tree.map(lambda x: jnp.eye(x.shape[0]), p)
    rights = jax.tree.map(lambda x: jnp.eye(x.shape[1]), p)
    step = step_of(tx)
    alone = iterated() if name in ITERATED else products(PRODUCTS[name])
    state, p = step(g, tx.init(p), p)
    jax.block_until_ready(alone(p, lefts, rights))
    ours, theirs = [], []

    def run():
        nonlocal state, p
        state, p = step(g, state, p)
        return p

    for _ in range(steps):
        ours.append(seconds(run))
        theirs.append(seconds(lambda: alone(p, lefts, rights)))
    seconds(run)
    late = max(seconds(run)[0], seconds(run)[0])  # the one that renews is among them
    taken = 1e3 * np.median(ours, 0)[0], 1e3 * np.median(theirs, 0)[0]
    return *taken, *np.median(np.divide(ours, theirs), 0), 1e3 * late


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[*PRODUCTS, *ITERATED])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--steps", type=int, default=15)
    args = parser.parse_args()
    heads = f"{'step':>10} {'products':>10} {'ratio':>6} {'processor':>10}"
    print(f"{'':12} {heads} {'renewing':>10}")
    for name in args.names:
        step, alone, ratio, cpu, late = measure(name, args.layers, args.steps)
        row = f"{step:7.0f} ms {alone:7.0f} ms {ratio:6.2f} {cpu:10.2f} {late:7.0f} ms"
        print(f"{name:12} {row}", flush=True)


if __name__ == "__main__":
    main()
