"""What a step costs in this checkout beside an earlier one: bytes and seconds.

    python -m studies.since FOLDER              FOLDER is a checkout of that commit
    python -m studies.since FOLDER --only muon  the rows whose names have that word
    python -m studies.since FOLDER --platform cuda  on a GPU, with larger arrays

Each checkout has a process of its own.  They take turns, so that whatever else runs
slows both; a ratio is the median over the rounds.  Times are processor time on a CPU,
and the time by the clock on a GPU, which should be yours alone.  A new ratio above 1.03
is marked.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


HERE = Path(__file__).parents[1]
LIMIT = 1.03

# Calls that make a transformation, with `s` for `stepax` and `r` for a learning rate.
ROWS = {
    "sgd": "s.sgd(r, momentum=0.9)",
    "adam": "s.adam(r)",
    "adamw": "s.adamw(r)",
    "adamw, warmup and cosine": "s.adamw(s.warmup_cosine_decay_schedule(0., r, 9, 99))",
    "lion": "s.lion(r)",
    "lamb": "s.lamb(r)",
    "adafactor": "s.adafactor(r)",
    "rmsprop": "s.rmsprop(r)",
    "prodigy": "s.contrib.prodigy(r)",
    "schedule_free_adamw": "s.contrib.schedule_free_adamw(r)",
    "muon": "s.contrib.muon(r)",
    "soap": "s.contrib.soap(r)",
    "clip + adamw": "s.chain(s.clip_by_global_norm(1.), s.adamw(r))",
    "zero_nans + adamw": "s.chain(s.zero_nans(), s.adamw(r))",
    "masked": "s.adamw(r, mask={'w': True, 'b': False})",
    "partition": "s.partition({'a': s.adam(r), 'b': s.sgd(r)}, {'w': 'a', 'b': 'b'})",
    "MultiSteps": "s.MultiSteps(s.adamw(r), 4).gradient_transformation()",
    "inject_hyperparams": "s.inject_hyperparams(s.adamw)(r)",
    "apply_if_finite": "s.apply_if_finite(s.adamw(r), 3)",
    "adamw + noise": "s.chain(s.adamw(r), s.add_noise(.1, .5, 0))",
    "lbfgs": "s.scale_by_lbfgs()",
    "flatten": "s.flatten(s.adam(r))",
}
# Widths of one large array and of many small ones, and how many steps a time is of.
SIZES = {"cpu": (1024, 16, 6), "gpu": (4096, 256, 30)}
COPIES = 30


# --- in a process of one checkout ----------------------------------------------------


def serve() -> None:
    """Answer each line, the name of a row and of a figure, with a number."""
    import jax
    import jax.numpy as jnp

    import stepax
    import stepax.contrib

    def normal(*shape):
        return jax.random.normal(jax.random.key(len(shape)), shape)

    on_cpu = jax.default_backend() == "cpu"
    wide, small, steps = SIZES[jax.default_backend()]
    several = [normal(small, small) for _ in range(COPIES)]
    trees = {
        "large": {"w": normal(wide, wide), "b": normal(wide)},
        "many": {"w": several, "b": several},
    }
    clock = time.process_time if on_cpu else time.perf_counter
    kept: dict[Any, Any] = {}

    def made(row: str, rate: float = 1e-3) -> Any:
        return eval(ROWS[row], {"s": stepax, "r": rate})

    def compiled(row: str, which: str) -> tuple:
        if (row, which) not in kept:
            tx, params = made(row), trees[which]
            state = jax.tree.map(jnp.asarray, tx.init(params))
            step = jax.jit(lambda g, s, p: tx.update(g, s, p))
            kept[row, which] = step.lower(params, state, params).compile(), state
        return kept[row, which]

    def seconds(f: Callable[[], Any], times: int = 1) -> float:
        result = None
        begin = clock()
        for _ in range(times):
            result = f()
        jax.block_until_ready(result)
        return (clock() - begin) / times

    def lower_time(row: str, which: str, compiles: bool) -> float:
        # A constant of its own keeps JAX from finding a program of before.
        kept["count"] = kept.get("count", 0) + 1
        tx, params = made(row, 1e-3 + 1e-6 * kept["count"]), trees[which]
        state = tx.init(params)
        step = jax.jit(lambda g, s, p: tx.update(g, s, p))

        def run() -> int:
            lowered = step.lower(params, state, params)
            return lowered.compile() and 0 if compiles else 0

        return seconds(run)

    def step_time(row: str, which: str) -> float:
        (step, state), params = compiled(row, which), trees[which]
        return seconds(lambda: step(params, state, params), steps)

    def eager_time(row: str) -> float:
        params = trees["many"]
        if ("eager", row) not in kept:
            tx = made(row)
            kept["eager", row] = tx, tx.init(params)
            tx.update(params, kept["eager", row][1], params)
        tx, state = kept["eager", row]
        return seconds(lambda: tx.update(params, state, params)[0], 3)

    figures = {
        "temporaries": lambda row: (
            compiled(row, "large")[0].memory_analysis().temp_size_in_bytes
        ),
        "bytes": lambda row: compiled(row, "large")[0].cost_analysis()[
            "bytes accessed"
        ],
        "instructions": lambda row: compiled(row, "many")[0].as_text().count(" = "),
        "trace": lambda row: lower_time(row, "many", compiles=False),
        "compilation": lambda row: lower_time(row, "large", compiles=True),
        "step, large": lambda row: step_time(row, "large"),
        "step, many": lambda row: step_time(row, "many"),
        "un-jitted": eager_time,
    }
    for line in sys.stdin:
        row, figure = line.rstrip("\n").split("\t")
        try:
            print(float(figures[figure](row)), flush=True)
        except Exception as error:  # a row that one of them cannot run
            print(f"nan {type(error).__name__}", flush=True)


COUNTED = ("temporaries", "bytes", "instructions")
TIMED = ("trace", "compilation", "step, large", "step, many", "un-jitted")


# --- the comparison ------------------------------------------------------------------


class Pair(NamedTuple):
    """The processes of both checkouts, the earlier one first."""

    both: tuple[subprocess.Popen, subprocess.Popen]

    def ask(self, row: str, figure: str, swapped: bool = False) -> tuple[float, float]:
        answers = {}
        for i in (1, 0) if swapped else (0, 1):
            process = self.both[i]
            assert process.stdin and process.stdout
            process.stdin.write(f"{row}\t{figure}\n")
            process.stdin.flush()
            answers[i] = float(process.stdout.readline().split()[0])
        return answers[0], answers[1]

    def ratio(self, row: str, figure: str, rounds: int) -> float:
        """The median of the ratios of new to old."""
        if figure in COUNTED:
            old, new = self.ask(row, figure)
            return (new + 1) / (old + 1)
        self.ask(row, figure)  # what is done once
        turns = [self.ask(row, figure, bool(i % 2)) for i in range(rounds)]
        return statistics.median(new / old for old, new in turns)


def begin(checkout: Path, platform: str) -> subprocess.Popen:
    env = os.environ | {"PYTHONPATH": str(checkout), "JAX_PLATFORMS": platform}
    env["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # two processes share a GPU
    command = [sys.executable, str(Path(__file__).resolve()), "--serve"]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, env=env, cwd=checkout, text=True, stdin=pipe, stdout=pipe
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, help="the earlier checkout")
    parser.add_argument("--only", default="", help="a part of names of rows")
    parser.add_argument("--platform", default="cpu", help="cpu or cuda, as JAX has it")
    parser.add_argument("--rounds", type=int, default=9, help="of which the median is")
    parser.add_argument("--figures", default="", help="a part of names of figures")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        return serve()
    platform = asked.platform
    pair = Pair((begin(asked.folder.resolve(), platform), begin(HERE, platform)))
    figures = [x for x in (*COUNTED, *TIMED) if asked.figures in x]
    print(f"{'new / old':26}", *(f"{x:>13}" for x in figures))
    for row in ROWS:
        if asked.only in row:
            ratios = [pair.ratio(row, x, asked.rounds) for x in figures]
            cells = (f"{x:.3f}{'*' if x > LIMIT else ' '}" for x in ratios)
            print(f"{row:26}", *(f"{x:>13}" for x in cells), flush=True)


if __name__ == "__main__":
    main()
