"""Muon's step on a ViT beside Optax's, and beside the matrix products that it needs.

Run it with `python -m studies.newton_schulz`, or with names of `stepax.contrib` and
a number of rounds: `python -m studies.newton_schulz muon normuon --rounds 40`.
`--write` puts the table of Muon into `docs/evidence/matrices.md`, and `--products` times single
products x xᵀ: plain, and as three of the four blocks of the symmetric result.

All programs run in turn in one process, in another order each round, on donated arrays.
Ratios are medians over rounds of the time and of the processor's time, which what else
runs on the machine disturbs less.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax

import stepax
from benchmarks.bench.cases import RATE
from benchmarks.bench.shapes import SHAPES, filled
from benchmarks.bench.stages import build
from website.tables.parts import write_table


PAGE = Path(__file__).parents[1] / "docs" / "evidence" / "matrices.md"
MARKS = "newton_schulz: written by `python -m studies.newton_schulz --write`", "end"
WHOLE, GRAM = "products, on whole matrices", "products, as Stepax takes them"
SIDES = (384, 384), (384, 1536), (768, 768), (768, 3072)
STEPS, RESTART = 5, 3


def wide(x: jax.Array) -> jax.Array:
    return x if len(x) <= len(x.T) else x.T


def on_whole(x: jax.Array) -> jax.Array:
    """The products of an iteration on x, and nothing else."""
    x = wide(x)
    for _ in range(STEPS):
        gram = x @ x.T
        x = (gram @ gram) @ x
    return x


def on_gram(x: jax.Array) -> jax.Array:
    """The products of an iteration on the Gram matrix, if x is long."""
    x = wide(x)
    if len(x.T) < 2 * len(x):
        return on_whole(x)
    for steps in (RESTART, STEPS - RESTART):
        gram: Any = x @ x.T
        q: Any = None
        for i in range(1, steps + 1):
            factor = gram @ gram
            q = factor if q is None else factor @ q
            if i < steps:
                gram = factor @ (gram @ factor)
        x = q @ x
    return x


def stepping(lib: Any, tx: Any, params: Any, g: Any) -> tuple[Callable, dict]:
    """A function that takes a step, and what its program costs."""
    built = build(tx, lib, jax.eval_shape(lambda: params))
    carry = [jax.tree.leaves(jax.tree.map(jnp.copy, (params, tx.init(params))))]
    gradients = jax.tree.leaves(g)

    def step() -> None:
        carry[0] = jax.block_until_ready(built.run(carry[0], gradients))

    return step, {**built.seconds, **built.counts}


def multiplying(f: Callable, xs: list) -> tuple[Callable, dict]:
    program = jax.jit(lambda xs: [f(x) for x in xs]).lower(xs).compile()
    cost: Any = program.cost_analysis()
    return lambda: jax.block_until_ready(program(xs)), {"flops": cost["flops"]}


def timed(runs: dict[str, Callable], rounds: int) -> dict[str, list]:
    """For each function, the time and the processor's time of each round."""
    found: dict[str, list] = {name: [] for name in runs}
    for turn in range(-2, rounds):
        for name in random.Random(turn).sample(list(runs), len(runs)):
            start = time.perf_counter(), time.process_time()
            runs[name]()
            taken = time.perf_counter() - start[0], time.process_time() - start[1]
            found[name] += [taken] if turn >= 0 else []
    return found


def ratio(found: dict, name: str, other: str, which: int) -> float:
    pairs = zip(found[name], found[other], strict=True)
    return statistics.median(x[which] / y[which] for x, y in pairs)


def measured(name: str, rounds: int) -> list[list[str]]:
    """The rows of one optimizer, of its products, and of Optax's if it has it."""
    tree = SHAPES["vit"].make(1)
    if not hasattr(optax.contrib, name):
        tree = {k: x for k, x in enumerate(_sides(tree))}
    params, g = (jax.tree.map(jnp.asarray, filled(tree, i, 0.01)) for i in (0, 1))
    xs = [x for x in jax.tree.leaves(g) if x.ndim == 2]
    libs = {"Stepax": stepax}
    if hasattr(optax.contrib, name):
        libs["Optax"] = optax
    make = lambda lib: getattr(lib.contrib, name)(RATE)
    made = {k: stepping(lib, make(lib), params, g) for k, lib in libs.items()}
    made |= {WHOLE: multiplying(on_whole, xs), GRAM: multiplying(on_gram, xs)}
    found = timed({k: run for k, (run, _) in made.items()}, rounds)
    rows = []
    for k, (_, cost) in made.items():
        ms = 1e3 * statistics.median(x for x, _ in found[k])
        row = [f"`{name}`, {k}" if k in libs else k, f"{ms:.0f}"]
        for other in ("Optax", GRAM):
            is_there = other in found
            both = [ratio(found, k, other, i) for i in (0, 1)] if is_there else []
            row.append(" / ".join(f"{x:.2f}" for x in both))
        made_in = f"{cost['compile']:.1f}" if "compile" in cost else ""
        held = f"{cost['temporaries']:.1f}" if "temporaries" in cost else ""
        flops = f"{cost['flops'] / 1e9:.0f}" if "flops" in cost else ""
        rows.append([*row, made_in, held, flops])
    return rows


def _sides(tree: Any) -> list[tuple]:
    leaves = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, tuple))
    return [x for x in leaves if len(x) == 2]


HEAD = [
    "",
    "ms",
    "to Optax: time / processor",
    "to its products",
    "compile, s",
    "temporaries, bytes per parameter",
    "Gflop of products",
]


def blocks(x: jax.Array) -> jax.Array:
    """x xᵀ from three of its four blocks."""
    half = len(x) // 2
    top, corner = x[:half] @ x.T, x[half:] @ x[half:].T
    below = jnp.concatenate([top[:, half:].T, corner], 1)
    return jnp.concatenate([top, below])


def products(rounds: int) -> None:
    for m, n in SIDES:
        x = jax.random.normal(jax.random.key(0), (m, n))
        forms = {"plain": jax.jit(lambda x: x @ x.T), "three blocks": jax.jit(blocks)}
        runs = {
            k: lambda f=f, x=x: jax.block_until_ready(f(x)) for k, f in forms.items()
        }
        both = [ratio(timed(runs, rounds), "three blocks", "plain", i) for i in (0, 1)]
        print(f"{m} x {n}: three blocks to plain", *(f"{x:.2f}" for x in both))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=["muon"])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--products", action="store_true")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    jax.config.update("jax_enable_compilation_cache", False)
    if asked.products:
        products(asked.rounds)
        return
    rows = [HEAD, ["---"] * len(HEAD)]
    for name in asked.names:
        rows += measured(name, asked.rounds)
    lines = [f"| {' | '.join(row)} |" for row in rows]
    print(*lines, sep="\n")
    if asked.write:
        write_table(PAGE, lines, *MARKS)


if __name__ == "__main__":
    main()
