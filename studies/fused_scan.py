"""Memory and time of a step on scanned layers: all gradients first, or one at a time.

Run it with `python -m studies.fused_scan`; `--write` puts the table into
`docs/fused_scan.md`.  Programs run in turn in one process; times are ratios of medians.
On a GPU, give it layers that fill it: `--width 2048 --batch 4096`.
"""

import argparse
import statistics
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import stepax
from benchmarks.bench.measure import timed
from website.tables.parts import write_table


PAGE = Path(__file__).parents[1] / "docs" / "fused_scan.md"
MARK = "fused_scan: written by `python -m studies.fused_scan --write`"
LAYERS, WIDTH, BATCH, ROUNDS = 24, 512, 32, 9
TURN = 0.1  # seconds of a turn, at least
OPTIMIZERS = {
    "adamw": stepax.adamw,
    "lion": stepax.lion,
    "muon": stepax.contrib.muon,
}


def layer(p, x):
    return x + jnp.tanh(x @ p["in"]) @ p["out"]


def loss(y):
    return jnp.mean((y - 1) ** 2)


def plain(tx, params, state, x):
    """All gradients, and then a step."""

    def whole(params):
        return loss(
            lax.scan(lambda x, p: (jax.checkpoint(layer)(p, x), None), x, params)[0]
        )

    g = jax.grad(whole)(params)
    return jax.vmap(lambda g, s, p: stepax.step(tx, g, s, p))(g, state, params)


def by_hand(tx, params, state, x):
    """A step in the loop over the layers, which writes them in place."""
    y, inputs = lax.scan(lambda x, p: (layer(p, x), x), x, params)
    at = lambda i, tree: jax.tree.map(lambda a: a[i], tree)

    def one(k, carry):
        params, state, dy = carry
        i = LAYERS - 1 - k
        p, s, x = at(i, (params, state, inputs))
        g, dx = jax.vjp(layer, p, x)[1](dy)
        new = stepax.step(tx, g, s, p)
        return *jax.tree.map(lambda a, b: a.at[i].set(b), (params, state), new), dx

    return lax.fori_loop(0, LAYERS, one, (params, state, jax.grad(loss)(y)))[:2]


def fused(tx, params, state, x):
    scan = stepax.fused_scan(layer, tx)
    y, inputs = scan.forward(params, x)
    return scan.backward(jax.grad(loss)(y), inputs, params, state)[:2]


FORMS = {"all gradients first": plain, "a loop by hand": by_hand, "`fused_scan`": fused}


def measured(name: str, width: int, batch: int) -> list[list[str]]:
    """The rows of an optimizer: temporaries, and the ratio of times to the first."""
    tx = OPTIMIZERS[name](1e-3)
    shape = jax.random.normal(jax.random.key(0), (LAYERS, width, width)) / width**0.5
    params = {"in": shape, "out": shape + 0.01}
    size = sum(p.size for p in jax.tree.leaves(params))
    state, x = jax.vmap(tx.init)(params), jnp.ones((batch, width))
    with ThreadPoolExecutor() as pool:
        made = pool.map(lambda f: compiled(f, tx, params, state, x), FORMS.values())
        programs = dict(zip(FORMS, made, strict=True))
    carries = {form: jax.tree.map(jnp.copy, (params, state)) for form in FORMS}
    medians = seconds(programs, carries, x)
    rows = []
    for form, program in programs.items():
        memory: Any = program.memory_analysis()
        temporaries = memory.temp_size_in_bytes / size
        ratio = medians[form] / medians["all gradients first"]
        took = f"{1e3 * medians[form]:.1f}"
        rows.append([f"`{name}`", form, f"{temporaries:.2f}", f"{ratio:.2f}", took])
    return rows


def compiled(f, tx, params, state, x):
    jitted = jax.jit(partial(f, tx), donate_argnums=(0, 1))
    return jitted.lower(params, state, x).compile()


def seconds(programs, carries, x) -> dict[str, float]:
    """The median of the seconds of a step of each program."""

    def turn(form, steps):
        for _ in range(steps):
            carries[form] = programs[form](*carries[form], x)
        return carries[form]

    found, many = {form: [] for form in programs}, {}
    for form in programs:
        timed(partial(turn, form, 1))
        many[form] = max(1, round(TURN / timed(partial(turn, form, 1))[1]))
    for _ in range(ROUNDS):
        for form, steps in many.items():
            found[form].append(timed(partial(turn, form, steps))[1] / steps)
    return {form: statistics.median(each) for form, each in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--write", action="store_true", help="write the table")
    add("--width", type=int, default=WIDTH, help="of a layer (default: %(default)s)")
    add("--batch", type=int, default=BATCH, help="examples (default: %(default)s)")
    asked = parser.parse_args()
    head = ["optimizer", "step", "temporaries, bytes per parameter", "time"]
    print(jax.devices()[0].device_kind, asked.width, asked.batch)
    rows = [head, ["---"] * len(head)]
    for name in OPTIMIZERS:
        for *row, milliseconds in measured(name, asked.width, asked.batch):
            print(*row, milliseconds, "ms", sep="  ", flush=True)
            rows.append(row)
    if asked.write:
        write_table(PAGE, (f"| {' | '.join(row)} |" for row in rows), MARK)


if __name__ == "__main__":
    main()
