"""Time of `diagnose` over many leaves, compared with that of `describe`.

Run it with `python -m benchmarks.diagnose 600`.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import stepax
import stepax.contrib


def shapes(leaves: int) -> dict[str, Any]:
    """Layers of a kernel, a bias and a norm scale, as many as give so many leaves."""
    sizes = {"kernel": (64, 64), "bias": (64,), "scale": (64,)}
    rows = [(i // 3, *list(sizes.items())[i % 3]) for i in range(leaves)]
    found: dict[str, Any] = {}
    for layer, name, shape in rows:
        of_layer = found.setdefault(f"layer_{layer}", {})
        of_layer[name] = jax.ShapeDtypeStruct(shape, jnp.float32)
    return found


def optimizers() -> dict[str, stepax.GradientTransformation]:
    """A single one, chains, labels, and a decay that differs by path."""
    rate = stepax.warmup_cosine_decay_schedule(1e-5, 1e-3, 100, 1000)
    labels = {"**/kernel": "matrix", "**": "other"}
    clip = stepax.clip_by_global_norm(1.0)
    muon = {"matrix": stepax.contrib.muon(rate), "other": stepax.adamw(rate)}
    decay = {"**/kernel": 0.1, "**": 0.0}
    return {
        "adam": stepax.adam(rate),
        "clip, adamw by path": stepax.chain(
            clip, stepax.adamw(rate, weight_decay=decay)
        ),
        "muon by label": stepax.partition(muon, labels),
        "injected": stepax.inject_hyperparams(stepax.adamw)(rate),
    }


def seconds(f: Callable, calls: int) -> float:
    """The median time of a call, after a first one."""
    f()
    times = []
    for _ in range(calls):
        begin = time.perf_counter()
        f()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("leaves", type=int, nargs="?", default=600)
    parser.add_argument("--calls", type=int, default=5)
    args = parser.parse_args()
    params = shapes(args.leaves)
    print("| | describe, ms | diagnose, ms | ratio |\n| --- | --- | --- | --- |")
    for name, tx in optimizers().items():
        describe = seconds(lambda tx=tx: stepax.describe(tx, params), args.calls)
        diagnose = seconds(
            lambda tx=tx: stepax.diagnose(tx, params, steps=1000), args.calls
        )
        times = f"{1e3 * describe:.1f} | {1e3 * diagnose:.1f}"
        print(f"| {name} | {times} | {diagnose / describe:.2f} |", flush=True)


if __name__ == "__main__":
    main()
