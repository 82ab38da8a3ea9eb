"""States in few bits: training loss on digits, and the time and memory of a step.

Run it with `python -m benchmarks.low_bit`; `--seeds 10` makes more runs, `--step`
measures the costs of a step instead, and `--markdown FILE` writes the table.

Runs with equal seeds see the same initial parameters and batches, so that differences
are those of pairs, with their standard errors.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.progress import track

import stepax
from stepax._demo.digits import load
from stepax.contrib import muon, soap


STEPS, BATCH, SIZES = 500, 64, (64, 256, 256, 10)
WIDE, HALF = jnp.dtype("float32"), jnp.dtype("bfloat16")
adamw = lambda: stepax.adamw(1e-3)
low = stepax.low_bit_states


class Case(NamedTuple):
    """A format, the name of the case that it is compared with, and what to train."""

    name: str
    base: str
    dtype: Any
    make: Callable[[], Any]


CASES = (
    Case("AdamW", "AdamW", WIDE, adamw),
    Case("AdamW, 8 bits", "AdamW", WIDE, lambda: low(adamw())),
    Case("AdamW, 4 bits", "AdamW", WIDE, lambda: low(adamw(), 4)),
    Case(
        "AdamW, bfloat16, remainder 16, 8 bits",
        "AdamW",
        HALF,
        lambda: stepax.master_weights(low(adamw()), remainder=16),
    ),
    Case(
        "AdamW, bfloat16, remainder 8, 8 bits",
        "AdamW",
        HALF,
        lambda: stepax.master_weights(low(adamw()), remainder=8),
    ),
    Case(
        "AdamW, bfloat16, stochastic rounding, 8 bits",
        "AdamW",
        HALF,
        lambda: stepax.stochastic_rounding(low(adamw()), 0),
    ),
    Case("Lion", "Lion", WIDE, lambda: stepax.lion(2e-4)),
    Case("Lion, 8 bits", "Lion", WIDE, lambda: low(stepax.lion(2e-4))),
    Case("SGD", "SGD", WIDE, lambda: stepax.sgd(0.05, 0.9)),
    Case("SGD, 8 bits", "SGD", WIDE, lambda: low(stepax.sgd(0.05, 0.9))),
    Case("SGD, 4 bits", "SGD", WIDE, lambda: low(stepax.sgd(0.05, 0.9), 4)),
    Case("Muon", "Muon", WIDE, lambda: muon(2e-3)),
    Case("Muon, 8 bits", "Muon", WIDE, lambda: low(muon(2e-3))),
    Case("SOAP", "SOAP", WIDE, lambda: soap(1e-3)),
    Case("SOAP, 8 bits", "SOAP", WIDE, lambda: low(soap(1e-3))),
    Case(
        "SOAP, bfloat16 factors",
        "SOAP",
        WIDE,
        lambda: soap(1e-3, factor_dtype=HALF),
    ),
)


def first_parameters(key: jax.Array, dtype: Any) -> list[jax.Array]:
    pairs = list(zip(SIZES, SIZES[1:], strict=False))
    keys = jax.random.split(key, len(pairs))
    draw = lambda k, n, m: jax.random.normal(k, (n, m)) * (2 / n) ** 0.5
    return [draw(k, *pair).astype(dtype) for k, pair in zip(keys, pairs, strict=True)]


def loss(params: list[jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    for w in params[:-1]:
        x = jax.nn.relu(x.astype(w.dtype) @ w)
    logits = (x @ params[-1]).astype(WIDE)
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1)
    return -jnp.mean(chosen)


def trained(tx: Any, dtype: Any, x: jax.Array, y: jax.Array, seed: Any) -> jax.Array:
    """The loss over all examples after the last step."""
    first, rest = jax.random.split(jax.random.key(seed))
    params = first_parameters(first, dtype)

    def step(carry, key):
        params, state = carry
        rows = jax.random.randint(key, (BATCH,), 0, len(x))
        grads = jax.grad(loss)(params, x[rows], y[rows])
        updates, state = tx.update(grads, state, params)
        return (stepax.apply_updates(params, updates), state), None

    keys = jax.random.split(rest, STEPS)
    (params, _), _ = jax.lax.scan(step, (params, tx.init(params)), keys)
    return loss([p.astype(WIDE) for p in params], x, y)


def training(seeds: int) -> list[str]:
    """The table of all cases."""
    images, labels = load()[0]
    x, y = jnp.asarray(images.reshape(len(images), -1)), jnp.asarray(labels)
    losses: dict[str, np.ndarray] = {}
    lines = ["| state | loss | spread over seeds | difference to float32 |"]
    lines.append("| --- | --- | --- | --- |")
    for case in track(CASES, "training"):
        tx = case.make()
        run = jax.jit(
            lambda seed, tx=tx, case=case: trained(tx, case.dtype, x, y, seed)
        )
        found = np.array([float(run(seed)) for seed in range(seeds)])
        losses[case.name] = found
        gap = found - losses[case.base]
        error = gap.std(ddof=1) / seeds**0.5
        shown = "" if case.name == case.base else f"{gap.mean():+.4f} ± {error:.4f}"
        spread = found.std(ddof=1)
        lines.append(f"| {case.name} | {found.mean():.4f} | {spread:.4f} | {shown} |")
    return lines


def costs(rounds: int = 5) -> list[str]:
    """Time to that of float32, temporaries and bytes accessed per parameter."""
    lines = ["| state | time | temporaries | accessed |", "| --- | --- | --- | --- |"]
    ready = []
    for case in CASES[:6]:
        params = [jnp.ones((2048, 4096), case.dtype) for _ in range(2)]
        tx, n = case.make(), sum(p.size for p in params)
        state = jax.jit(tx.init)(params)
        step = jax.jit(tx.update, donate_argnums=1).lower(params, state, params)
        compiled = step.compile()
        memory: Any = compiled.memory_analysis()
        cost: Any = compiled.cost_analysis()
        bytes_of = memory.temp_size_in_bytes / n, cost["bytes accessed"] / n
        ready.append([case.name, compiled, params, state, bytes_of, []])
    for _ in range(rounds):
        for row in ready:
            start = time.perf_counter()
            _, row[3] = jax.block_until_ready(row[1](row[2], row[3], row[2]))
            row[5].append(time.perf_counter() - start)
    base = statistics.median(ready[0][5])
    for name, _, _, _, (temporary, accessed), taken in ready:
        ratio = statistics.median(taken) / base
        lines.append(f"| {name} | {ratio:.2f} | {temporary:.2f} | {accessed:.0f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="runs of each case")
    parser.add_argument("--step", action="store_true", help="costs of a step instead")
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    args = parser.parse_args()
    lines = costs() if args.step else training(args.seeds)
    print("\n".join(lines))
    if args.markdown:
        args.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
