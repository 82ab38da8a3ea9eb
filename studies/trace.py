"""What tracing and lowering a step costs, compared with Optax.

Run it with `python studies/trace.py`, or with `--all` for every optimizer that both
libraries have.

Equations are exact.  Times are taken alternately in one process, for a new optimizer in
each round, and compared by the median of their ratios.
"""

import argparse
import functools
import inspect
import statistics
import time
import warnings

import jax
import jax.numpy as jnp
import optax

import stepax
import stepax.contrib  # enters its optimizers into the registry
from benchmarks.bench import cases, shapes
from benchmarks.bench.shapes import is_shape
from stepax._engine.factories.registry import ROWS


def narrow(layers: int) -> dict:
    """A narrow tree with the structure of GPT-2: 12 leaves per layer and 4 more."""
    return jax.tree.map(jnp.ones, shapes.gpt2(layers, 8, 32, 16), is_leaf=is_shape)


OPTIMIZERS = {
    name: cases.CASES[name].make
    for name in ("adamw", "lion", "clip + scheduled adamw, mask")
}


# Keyword arguments that optimizers may read; the loss depends on the first leaf.
def loss(params, obj_fn=None):
    return jnp.sum(jnp.square(jax.tree.leaves(params)[0]))


def step_of(tx, params):
    tx = optax.with_extra_args_support(tx)

    def step(g, s, p):
        read = {"value": loss(p), "grad": g, "value_fn": loss}
        return tx.update(g, s, p, **read, obj_fn=loss)

    return step, tx.init(params)


def equations(tx, params) -> int:
    step, state = step_of(tx, params)
    return len(jax.make_jaxpr(step)(params, state, params).eqns)


def seconds(tx, params) -> float:
    """The time to trace and lower a step."""
    step, state = step_of(tx, params)
    start = time.perf_counter()
    jax.jit(step).lower(params, state, params)
    return time.perf_counter() - start


def every() -> dict:
    """The optimizers that both libraries have, with their defaults."""
    found = {}
    for name, row in ROWS.items():
        parameters = inspect.signature(row.factory).parameters
        is_new = not any(name in vars(lib) for lib in (optax, optax.contrib))
        if row.kind != "optimizer" or is_new or "l2_norm_clip" in parameters:
            continue  # gradients of each example have trees of their own
        found[name] = functools.partial(_made, name, "learning_rate" in parameters)
    return found


def _made(name, takes_rate, lib, rate):
    factory = getattr(lib if name in vars(lib) else lib.contrib, name)
    with warnings.catch_warnings(action="ignore"):  # of old names and missing keys
        return factory(learning_rate=rate) if takes_rate else factory(rate)


def ratio(make, params, rounds) -> float:
    ratios = []
    for i in range(rounds):
        rate = 1e-3 + 1e-6 * i  # a new optimizer: nothing is cached
        ours = seconds(make(stepax, rate), params)
        ratios.append(ours / seconds(make(optax, rate), params))
    return statistics.median(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--all", action="store_true", help="every optimizer that both libraries have"
    )
    args = parser.parse_args()
    print(f"JAX {jax.__version__}, Optax {optax.__version__}, {args.rounds} rounds")
    print(f"{'leaves':>6} {'optimizer':32} {'equations':>16} {'trace + lower':>14}")
    ratios = []
    for layers in (50,) if args.all else (12, 48, 50):
        params = narrow(layers)
        leaves = len(jax.tree.leaves(params))
        for name, make in (every() if args.all else OPTIMIZERS).items():
            counts = [equations(make(lib, 1e-3), params) for lib in (optax, stepax)]
            ratios.append(ratio(make, params, args.rounds))
            shown = f"{counts[0]:>6} -> {counts[1]:>6}"
            print(f"{leaves:6} {name:32} {shown:>16} {ratios[-1]:14.2f}", flush=True)
    print(f"{'geometric mean':56} {statistics.geometric_mean(ratios):14.2f}")


if __name__ == "__main__":
    main()
