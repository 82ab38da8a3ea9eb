"""AdamW on many small arrays, in every arrangement, to Optax: what joining them brings.

Run it with `python -m studies.small_arrays 150 600 2000`; `--write` puts the table
into `docs/small_arrays.md`.  Steps run in turn in one process.  All times are of the
processor, so that what else runs on the machine matters less.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax

import stepax
from stepax._engine.arrays.joined import Joined
from website.tables.parts import write_table


PAGE = Path(__file__).parents[1] / "docs" / "small_arrays.md"
MARK = "small_arrays: written by `python -m studies.small_arrays --write`"
RATE, ROUNDS, STACKED_UP_TO = 1e-3, 30, 150
SHAPES = (64,), (32, 64)


def two_calls(lib: Any, tx: Any) -> Callable:
    def step(params, state, g):
        updates, state = tx.update(g, state, params)
        return lib.apply_updates(params, updates), state

    return step


def in_one(tx: Any) -> Callable:
    return lambda params, state, g: stepax.step(tx, g, state, params)


def nothing(params: dict, state: Any, g: dict) -> tuple:
    """No step: what JAX takes to pass all arrays in and out."""
    adam, *rest = state
    return params, (adam._replace(count=adam.count + 1), *rest)


def joined(params: dict, state: Any, g: dict) -> tuple:
    """Arrays joined in the step, so that parameters and state keep their structure."""
    return _regrouped(lambda p: "all", params, state, g)


def stacked(params: dict, state: Any, g: dict) -> tuple:
    """As `joined`, but only arrays of one shape."""
    return _regrouped(jnp.shape, params, state, g)


def _regrouped(kind: Callable, params: dict, state: Any, g: dict) -> tuple:
    shapes = [p.shape for p in params.values()]
    groups = Joined([kind(p) for p in params.values()], shapes)

    def whole(tree: Any) -> Any:
        return groups.join(list(tree.values())) if isinstance(tree, dict) else tree

    def parts(tree: Any) -> Any:
        is_whole = isinstance(tree, list)
        return dict(zip(params, groups.split(tree), strict=True)) if is_whole else tree

    is_tree = lambda x: isinstance(x, dict | list)
    state = jax.tree.map(whole, state, is_leaf=is_tree)
    new = stepax.step(stepax.adamw(RATE), whole(g), state, whole(params))
    return jax.tree.map(parts, new, is_leaf=is_tree)


def forms(n: int) -> dict[str, tuple]:
    """A step, and the function that makes its first state, by arrangement."""
    tx, flat, pack = (
        stepax.adamw(RATE),
        stepax.flatten(stepax.adamw(RATE)),
        stepax.tree.pack,
    )
    found = {
        "Optax": (two_calls(optax, optax.adamw(RATE)), optax.adamw(RATE).init, None),
        "arrays returned as they are": (nothing, tx.init, None),
        "two calls": (two_calls(stepax, tx), tx.init, None),
        "`step`": (in_one(tx), tx.init, None),
        "`step`, `flatten(tx)`": (in_one(flat), flat.init, None),
        "`step`, `tree.pack(params)`": (in_one(tx), tx.init, pack),
        "joined in the step": (joined, tx.init, None),
        "stacked by shape in the step": (stacked, tx.init, None),
    }
    if n > STACKED_UP_TO:  # minutes to compile
        found.pop("stacked by shape in the step")
    return found


def measured(n: int) -> list[list[str]]:
    """The rows for n arrays."""
    params = {f"{i:04d}": jnp.ones(SHAPES[i % 2]) for i in range(n)}
    costs, programs, carries = {}, {}, {}
    for name, (step, init, arrange) in forms(n).items():
        own = arrange(params) if arrange else params
        carry = own, init(own)
        begin = time.process_time()
        lowered = jax.jit(step, donate_argnums=(0, 1)).lower(*carry, own)
        middle = time.process_time()
        programs[name] = lowered.compile()
        costs[name] = [middle - begin, time.process_time() - middle]
        carries[name] = jax.tree.map(jnp.copy, carry), own
    seconds: dict[str, list] = {name: [] for name in programs}
    for _ in range(ROUNDS):
        for name, program in programs.items():
            carry, g = carries[name]
            begin = time.process_time()
            carries[name] = jax.block_until_ready(program(*carry, g)), g
            seconds[name].append(time.process_time() - begin)
    first = [statistics.median(seconds["Optax"]), *reversed(costs["Optax"])]
    rows = []
    for name in programs:
        own = statistics.median(seconds[name]), *reversed(costs[name])
        ratios = [f"{x / y:.2f}" for x, y in zip(own, first, strict=True)]
        held = programs[name].memory_analysis().temp_size_in_bytes
        size = sum(p.nbytes for p in params.values())
        rows.append([str(n), name, *ratios, f"{4 * held / size:.1f}"])
        print(*rows[-1], sep="  ", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("arrays", type=int, nargs="*", default=[150, 600, 2000])
    parser.add_argument("--write", action="store_true", help="write the table")
    asked = parser.parse_args()
    jax.config.update("jax_enable_compilation_cache", False)
    head = [
        "arrays",
        "arrangement",
        "step",
        "compile",
        "trace and lower",
        "temporaries",
    ]
    rows = [head, ["---"] * len(head)]
    for n in asked.arrays:
        rows += measured(n)
    if asked.write:
        write_table(PAGE, (f"| {' | '.join(row)} |" for row in rows), MARK)


if __name__ == "__main__":
    main()
