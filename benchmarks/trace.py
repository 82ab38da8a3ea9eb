"""How much is traced and lowered for a step, beside Optax.

Run it with `python benchmarks/trace.py`.

Equations are exact.  Times are taken in turns in one process, for an optimizer that is
new in each round, and compared as the median of their ratios.
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp
import optax

import stepax


def transformer(layers: int) -> dict:
    """A tree shaped as GPT-2, narrow: 12 leaves a layer and 4 more."""
    d = 8

    def layer():
        return {
            "ln_1": {"scale": jnp.ones(d), "bias": jnp.ones(d)},
            "attention": {"kernel": jnp.ones((d, 3 * d)), "bias": jnp.ones(3 * d)},
            "projection": {"kernel": jnp.ones((d, d)), "bias": jnp.ones(d)},
            "ln_2": {"scale": jnp.ones(d), "bias": jnp.ones(d)},
            "up": {"kernel": jnp.ones((d, 4 * d)), "bias": jnp.ones(4 * d)},
            "down": {"kernel": jnp.ones((4 * d, d)), "bias": jnp.ones(d)},
        }

    ends = {"scale": jnp.ones(d), "bias": jnp.ones(d)}
    tables = {"tokens": jnp.ones((32, d)), "positions": jnp.ones((16, d))}
    return {"layers": [layer() for _ in range(layers)], "ln_f": ends, **tables}


def matrices(params):
    return jax.tree.map(lambda p: p.ndim > 1, params)


OPTIMIZERS = {
    "adamw": lambda lib, rate: lib.adamw(rate),
    "lion": lambda lib, rate: lib.lion(rate),
    "clip + schedule + adamw + mask": lambda lib, rate: lib.chain(
        lib.clip_by_global_norm(1.0),
        lib.adamw(lib.cosine_decay_schedule(rate, 100), mask=matrices),
    ),
}


def equations(tx, params) -> int:
    state = tx.init(params)
    return len(jax.make_jaxpr(tx.update)(params, state, params).eqns)


def seconds(tx, params) -> float:
    """To trace and lower a step."""
    state = tx.init(params)

    def step(g, s, p):
        return tx.update(g, s, p)

    start = time.perf_counter()
    jax.jit(step).lower(params, state, params)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    print(f"JAX {jax.__version__}, Optax {optax.__version__}, {rounds} rounds")
    print(f"{'leaves':>6} {'optimizer':32} {'equations':>16} {'trace + lower':>14}")
    for layers in (12, 48, 50):
        params = transformer(layers)
        leaves = len(jax.tree.leaves(params))
        for name, make in OPTIMIZERS.items():
            counts = [equations(make(lib, 1e-3), params) for lib in (optax, stepax)]
            ratios = []
            for i in range(rounds):
                rate = 1e-3 + 1e-6 * i  # a new optimizer: nothing is cached
                ours = seconds(make(stepax, rate), params)
                ratios.append(ours / seconds(make(optax, rate), params))
            shown = f"{counts[0]:>6} -> {counts[1]:>6}"
            print(f"{leaves:6} {name:32} {shown:>16} {statistics.median(ratios):14.2f}")


if __name__ == "__main__":
    main()
