"""What a step of a scanned model costs before it runs, beside the unrolled model.

Run it with `python -m studies.stacked`.

The model has the layers of a small transformer, once as stacks under `stacked` and once
as arrays of their own, for Stepax and, where it has the optimizer, for Optax.  Times
are medians, taken alternately in one process from empty caches.
"""

import argparse
import gc
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

import stepax
import stepax.contrib


WIDTH = 64


def layer(*stack: int) -> dict:
    """The parameters of a layer, or of a stack of them, as shapes."""

    def array(*shape):
        return jax.ShapeDtypeStruct((*stack, *shape), jnp.float32)

    def dense(inputs, outputs):
        return {"kernel": array(inputs, outputs), "bias": array(outputs)}

    norm = {"scale": array(WIDTH), "bias": array(WIDTH)}
    attention = {name: dense(WIDTH, WIDTH) for name in ("q", "k", "v", "out")}
    mlp = {"up": dense(WIDTH, 4 * WIDTH), "down": dense(4 * WIDTH, WIDTH)}
    return {"norms": [norm, norm], "attention": attention, "mlp": mlp}


def model(layers: object) -> dict:
    return {"layers": layers, "embedding": layer()["attention"]["q"]["kernel"]}


def sides(name: str, layers: int) -> dict[str, tuple[Callable, dict]]:
    """The transformations and trees that are compared, by the names of columns."""
    make = getattr(stepax, name, None) or getattr(stepax.contrib, name)
    theirs = getattr(optax, name, None) or getattr(optax.contrib, name, None)
    axes = {"layers/**": 0, "**": None}
    unrolled = model([layer() for _ in range(layers)])
    found = {
        "stacked": (lambda: stepax.stacked(make(1e-3), axes), model(layer(layers))),
        "unrolled": (lambda: make(1e-3), unrolled),
        "one layer": (lambda: make(1e-3), model([layer()])),
    }
    return found | (
        {"Optax unrolled": (lambda: theirs(1e-3), unrolled)} if theirs else {}
    )


def lowered(make: Callable, params: dict) -> tuple[float, jax.stages.Lowered]:
    """The time to trace and lower a step, and the program."""
    tx = make()
    state = jax.eval_shape(tx.init, params)
    jax.clear_caches()
    gc.collect()  # of what was measured before
    start = time.perf_counter()
    program = jax.jit(tx.update).lower(params, state, params)
    return time.perf_counter() - start, program


def compiled(program: jax.stages.Lowered) -> float:
    start = time.perf_counter()
    program.compile()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("names", nargs="*", default=["adamw", "lamb", "muon", "soap"])
    args = parser.parse_args()
    print(f"{args.layers} layers, JAX {jax.__version__}, seconds")
    for name in args.names:
        rows = sides(name, args.layers)
        times: dict[str, list] = {side: [] for side in rows}
        for _ in range(args.rounds):
            for side, row in rows.items():
                times[side].append(lowered(*row)[0])
        for side, row in rows.items():
            compiling = compiled(lowered(*row)[1])
            tracing = statistics.median(times[side])
            print(f"{name:10} {side:15} {tracing:7.3f} {compiling:7.2f}", flush=True)


if __name__ == "__main__":
    main()
