"""States in few bits: losses of trained networks, and the time and memory of a step.

Run it with `python -m studies.low_bit`, which writes the tables of docs/evidence/memory.md;
what is in the file of `--results` is not run again.  `--step` prints the costs of a
step instead.

Runs with equal seeds see the same initial parameters and batches, so that differences
are those of pairs, with their standard errors.
"""

import argparse
import functools as ft
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.progress import track

import stepax
from stepax.contrib import muon, soap
from website.tables.parts import write_table

from .low_bit_tasks import Task, digits, text


PAGE = Path(__file__).parents[1] / "docs" / "evidence" / "memory.md"
TASKS = {"digits": digits, "text": text}
WIDE, HALF = jnp.dtype("float32"), jnp.dtype("bfloat16")
# Of AdamW, Lion, SGD, Muon and SOAP, by task.
RATES = {
    "digits": {"AdamW": 1e-3, "Lion": 2e-4, "SGD": 0.05, "Muon": 2e-3, "SOAP": 1e-3},
    "text": {"AdamW": 3e-3, "Lion": 5e-4, "SGD": 0.1, "Muon": 1e-2, "SOAP": 3e-3},
}
MAKE: dict[str, Callable[..., Any]] = {
    "AdamW": stepax.adamw,
    "Lion": stepax.lion,
    "SGD": lambda rate: stepax.sgd(rate, 0.9),
    "Muon": muon,
    "SOAP": soap,
}
low = stepax.low_bit_states
kept = stepax.master_weights


class Case(NamedTuple):
    """An optimizer in a format: the dtype of its parameters, and what is around it."""

    base: str
    form: str = ""
    wrap: Callable[[Any], Any] = lambda tx: tx
    dtype: Any = WIDE
    options: Mapping[str, Any] = {}
    only: str = ""

    @property
    def name(self) -> str:
        return f"{self.base}, {self.form}" if self.form else self.base


def _in_few_bits(name: str) -> tuple[Case, ...]:
    found = Case(name), Case(name, "8 bits", low)
    # With a longer memory a mean in 4 bits is mostly rounding.
    is_short = name in ("AdamW", "SGD")
    return (*found, Case(name, "4 bits", lambda tx: low(tx, 4))) if is_short else found


CASES = (
    *(case for name in MAKE for case in _in_few_bits(name)),
    Case("SOAP", "bfloat16 factors", options={"factor_dtype": HALF}),
    Case(
        "AdamW",
        "bfloat16, remainder 16, 8 bits",
        lambda tx: kept(low(tx), remainder=16),
        HALF,
        only="digits",
    ),
    Case(
        "AdamW",
        "bfloat16, remainder 8, 8 bits",
        lambda tx: kept(low(tx), remainder=8),
        HALF,
        only="digits",
    ),
    Case(
        "AdamW",
        "bfloat16, stochastic rounding, 8 bits",
        lambda tx: stepax.stochastic_rounding(low(tx), 0),
        HALF,
        only="digits",
    ),
)


def made(case: Case, task: str) -> Any:
    """The transformation of a case."""
    return case.wrap(MAKE[case.base](RATES[task][case.base], **case.options))


def trained(tx: Any, dtype: Any, task: Task, seed: Any) -> jax.Array:
    """The loss over all examples after the last step."""
    first, rest = jax.random.split(jax.random.key(seed))
    params = jax.tree.map(lambda p: p.astype(dtype), task.first(first))

    def step(carry, key):
        params, state = carry
        grads = jax.grad(task.loss)(params, task.draw(key))
        updates, state = tx.update(grads, state, params)
        return (stepax.apply_updates(params, updates), state), None

    keys = jax.random.split(rest, task.steps)
    (params, _), _ = jax.lax.scan(step, (params, tx.init(params)), keys)
    return task.loss(jax.tree.map(lambda p: p.astype(WIDE), params), task.whole)


def training(names: Sequence[str], seeds: int, file: Path) -> list[str]:
    """The tables of all cases; what is in the file is not run again."""
    found = json.loads(file.read_text()) if file.exists() else {}
    # Half of the seeds of all cases first, so that an early table is a whole one.
    halves = range(seeds // 2), range(seeds // 2, seeds)
    rows = [(x, c) for x in names for c in CASES if c.only in ("", x)]
    tasks = {name: TASKS[name]() for name in names}
    for (name, case), some in track([(r, h) for h in halves for r in rows], "training"):
        losses = found.setdefault(name, {}).setdefault(case.name, {})
        run = jax.jit(ft.partial(trained, made(case, name), case.dtype, tasks[name]))
        for seed in map(str, some):
            if seed not in losses:
                losses[seed] = float(run(int(seed)))
                file.write_text(json.dumps(found, indent=1))
    return [
        line
        for name in names
        for line in ["", f"### {name.title()}", "", *table(found[name])]
    ]


def table(found: dict[str, dict[str, float]]) -> list[str]:
    """The table of one task."""
    lines = ["| state | loss | spread over seeds | difference to float32 |"]
    lines.append("| --- | --- | --- | --- |")
    for case in CASES:
        losses, base = found.get(case.name, {}), found.get(case.base, {})
        if len(seeds := [seed for seed in losses if seed in base]) < 2:
            continue
        values = np.array([losses[seed] for seed in seeds])
        gap = values - np.array([base[seed] for seed in seeds])
        error = gap.std(ddof=1) / len(gap) ** 0.5
        shown = f"{gap.mean():+.4f} ± {error:.4f}" if case.form else ""
        mean, spread = values.mean(), values.std(ddof=1)
        lines.append(f"| {case.name} | {mean:.4f} | {spread:.4f} | {shown} |")
    return lines


def costs(rounds: int = 15) -> list[str]:
    """Time of `stepax.step` to that of float32, and its bytes per parameter."""
    lines = ["| state | time | temporaries | accessed |", "| --- | --- | --- | --- |"]
    ready = []
    for case in [case for case in CASES if case.base == "AdamW"]:
        params = [jnp.ones((2048, 2048), case.dtype) for _ in range(8)]
        tx, n = made(case, "digits"), sum(p.size for p in params)
        carry = params, jax.jit(tx.init)(params)
        gradients = jax.tree.map(jnp.copy, params)
        step = lambda carry, g, tx=tx: stepax.step(tx, g, carry[1], carry[0])
        compiled = jax.jit(step, donate_argnums=0).lower(carry, gradients).compile()
        memory: Any = compiled.memory_analysis()
        cost: Any = compiled.cost_analysis()
        bytes_of = memory.temp_size_in_bytes / n, cost["bytes accessed"] / n
        ready.append([case.name, compiled, carry, gradients, bytes_of, []])
    for _ in range(rounds):
        for row in ready:
            start = time.perf_counter()
            row[2] = jax.block_until_ready(row[1](row[2], row[3]))
            row[5].append(time.perf_counter() - start)
    base = statistics.median(ready[0][5])
    for name, _, _, _, (temporary, accessed), taken in ready:
        ratio = statistics.median(taken) / base
        lines.append(f"| {name} | {ratio:.2f} | {temporary:.2f} | {accessed:.0f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="runs of each case")
    parser.add_argument("--task", choices=TASKS, help="the only task, of both")
    parser.add_argument("--step", action="store_true", help="costs of a step instead")
    parser.add_argument("--results", type=Path, default=Path("low_bit.json"))
    args = parser.parse_args()
    names = [args.task] if args.task else list(TASKS)
    lines = costs() if args.step else training(names, args.seeds, args.results)
    print("\n".join(lines))
    if names == list(TASKS) and not args.step:
        text = "\n".join(lines).strip()
        write_table(PAGE, [text, ""], "training", "end training")


if __name__ == "__main__":
    main()
