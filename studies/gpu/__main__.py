"""Steps on a GPU: what they take beside Optax and PyTorch, and where the time goes.

Install JAX for your GPU, Optax and PyTorch, and run in the root of the repository:

    python -m studies.gpu measure h100.json
    python -m studies.gpu profile "clip + adamw" --tree gpt1b --out .
    python -m studies.fused_scan --width 2048 --batch 4096
    python -m studies.gpu.on_gpu

1. `measure` takes steps on trees of 64 million to a billion parameters: seconds,
   bytes beside the bandwidth of a copy in the same run, and the memory that XLA plans.
   It first compiles all programs, on all cores, in one to three minutes, and then takes
   about ten seconds for a case.  After `--minutes`, by default 9, it begins no further
   case; the same command then goes on.  A case that fails, as for want of memory, is
   named and left out.  With `--profiles FOLDER` it profiles, in the time that is left,
   what takes longer than in Optax or in PyTorch's fused step.
2. `profile` takes some steps of a case, in one to three minutes, and prints kernels:
   how often they run in a step, for how long, how fast they read and write.  The table
   and the optimized program are files in `--out`.  Look first for kernels far below the
   bandwidth of a copy; if all kernels together take much less time than the step, the
   host is too slow, more so than in `measure`, which has CUDA graphs.  `--way` is
   `stepax`, `stepax.step` or `optax`.
3. `fused_scan` compares a training step that updates in the backward pass.
4. `on_gpu` compares all optimizers with the same on a CPU, and measures `offload`;
   about five minutes.

A file of `measure` in docs/evidence/bench becomes tables of docs/bench.md by `make
bench-pages`; `python -m benchmarks.bench --from h100.json` prints them.  `--tiny` tries
the commands in narrow trees, on a CPU as well.
"""

import argparse
import fnmatch
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.bench import command, report, results
from benchmarks.bench.cases import CASES, GPTS
from benchmarks.bench.measure import (
    IN_ONE,
    OURS,
    Plan,
    installed,
    make_runners,
    numbers,
    ways,
)
from benchmarks.bench.rounds import Limits, timed
from benchmarks.bench.shapes import SHAPES, abstract, size
from benchmarks.bench.stages import Built

from . import ahead, kernels


TINY = 8  # divisor of widths
LIMITS = Limits(least=9, most=100, seconds=3.0, width=0.02)
# PyTorch needs memory as well, in the same process.
MEMORY = {
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.95",
}
STEPS = 3  # periods that a profile has
# From these ratios of a step on, a profile tells where the time goes.
SLOWER = {"optax": 1.02, "torch fused": 1.03}
# Trees, the first ones first, and what is measured on those that are not of a GPT.
TREES = (*GPTS, "large", "small", "gpt256")
OF_SMALL = ("adamw", "clip + adamw", "adamw, packed", "clip + adamw, packed")


def pairs() -> list[tuple[str, str]]:
    """Trees and cases, in the order of measuring.

    Those in bfloat16 are the last of a tree, whose numbers the others share, and SOAP
    on GPT-2 is the last of all, since it takes longest to compile.
    """
    found = [
        (shape, name)
        for shape in TREES
        for name, case in CASES.items()
        if shape in case.shapes + case.on_gpu and (shape != "small" or name in OF_SMALL)
    ]
    is_slow = lambda x: x[0] == "gpt2" and x[1].startswith("soap")
    place = lambda x: TREES.index(x[0])
    is_narrow = lambda x: CASES[x[1]].dtype == jnp.bfloat16
    return sorted(found, key=lambda x: (is_slow(x), place(x), is_narrow(x)))


def measure(path: Path, args: argparse.Namespace) -> list[str]:
    """Measure what the file lacks, and return what failed."""
    begin = time.monotonic()
    until = begin + 60 * args.minutes
    # A cached program would seem to compile in no time.
    jax.config.update("jax_enable_compilation_cache", False)
    plan = Plan(TINY if args.tiny else 1, LIMITS, installed())
    about = results.surroundings([], plan.divisor, LIMITS)
    about["commands"] = ["python -m studies.gpu measure"]
    rows = results.kept(path, about)
    done = {(row["shape"], row["case"]) for row in rows}
    fits = lambda x: any(fnmatch.fnmatch(f"{x[0]}: {x[1]}", y) for y in args.only)
    missing = [pair for pair in pairs() if pair not in done and fits(pair)]
    plan = plan._replace(programs=ahead.compiled(missing, plan, args.threads))
    print(f"compiled in {time.monotonic() - begin:.0f} s", flush=True)
    left = command.measure_all(missing, plan, rows, about, path, until)
    if left:
        print(f"{left} left; the same command goes on")
    print("failed: ", *about.get("failed", ["none"]), sep="\n", flush=True)
    if args.profiles:
        _profile_slower(rows, plan, args.profiles, until)
    return about.get("failed", [])


def slower(rows: list[dict]) -> list[tuple[str, str]]:
    """Trees and cases whose step takes longer than in another library, or has no rival.

    Those that lose most come first.
    """
    alone = {x for x, case in CASES.items() if case.libraries and not case.is_stepwise}
    found = {(x["shape"], x["case"]): 0.0 for x in rows if x["case"] in alone}
    for row in rows:
        for rival, limit in SLOWER.items():
            ratio = row.get("ratios", {}).get(rival, {}).get("step", [0.0])[0]
            if ratio > limit:
                pair = row["shape"], row["case"]
                found[pair] = max(found.get(pair, 0.0), ratio / limit)
    return sorted(found, key=lambda pair: -found[pair])


def _profile_slower(rows, plan, folder, until):
    for shape, name in slower(rows):
        if (shape, name) not in plan.programs or time.monotonic() > until:
            continue
        for library, built in plan.programs[shape, name].items():
            if library != OURS:
                text = profiled(name, shape, library, built, folder, plan.divisor)
                print(text, flush=True)


def profile(name: str, tree: str, library: str, folder: Path, tiny: bool) -> str:
    """The table of the kernels of a case, which is written into the folder as well."""
    case, divisor = CASES[name], TINY if tiny else 1
    way = ways(case, installed())[library]
    built = way.build(way.make(), abstract(SHAPES[tree].make(divisor), case.dtype))
    return profiled(name, tree, library, built, folder, divisor)


def profiled(
    name: str, tree: str, library: str, built: Built, folder: Path, divisor: int
) -> str:
    """The same of a program that is compiled."""
    case, shapes = CASES[name], SHAPES[tree].make(divisor)
    way = ways(case, installed())[library]
    program: Any = built.run
    trees = numbers(SHAPES[tree], divisor, case.dtype)
    run = make_runners({library: way}, {library: built}, *trees)[library]
    run(2 * case.calls)
    steps = STEPS * case.calls
    seconds = timed(lambda: run(steps))[1] / steps
    text = program.as_text()
    found = kernels.profiled(run, steps, text)
    lines = [
        f"{name} on {tree}, {library}: {SHAPES[tree].what}",
        f"a step takes {1e3 * seconds:.3f} ms, its kernels "
        f"{1e3 * sum(x.seconds for x in found):.3f} ms",
        _memory(built, size(shapes)[1]),
        "",
        report.plain(kernels.table(found)),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"\W+", "_", f"{name} {tree} {library}")
    (folder / f"{stem}.hlo.txt").write_text(text)
    (folder / f"{stem}.txt").write_text("\n".join(lines))
    return "\n".join(lines)


def _memory(built: Built, numbers: int) -> str:
    """Bytes for each parameter, as XLA plans them and as the device has seen them."""
    plan = {k: built.counts[k] for k in ("bytes", "temporaries", "held")}
    told = ", ".join(f"{k} {x:.1f}" for k, x in plan.items())
    peak = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    seen = "" if peak is None else f"; at the peak of this process {peak / numbers:.1f}"
    return f"for each parameter: {told}{seen}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m studies.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("measure").add_argument
    add("file", type=Path, help="the results, a .json; what it has is not repeated")
    add("--minutes", type=float, default=9.0, help="then end (default: %(default)g)")
    add("--tiny", action="store_true", help="trees an eighth as wide")
    add("--threads", type=int, default=os.cpu_count(), help="that compile")
    add(
        "--only",
        nargs="+",
        default=["*"],
        metavar="PATTERN",
        help='of "TREE: CASE", such as "gpt2: *"',
    )
    add("--profiles", type=Path, metavar="FOLDER", help="of what is slower than others")
    add = commands.add_parser("profile").add_argument
    add("case", choices=list(CASES), metavar="CASE", help=", ".join(CASES))
    add("--tree", choices=list(SHAPES), default="gpt1b")
    add("--way", choices=(OURS, IN_ONE, "optax"), default=IN_ONE)
    add(
        "--out",
        type=Path,
        default=Path("."),
        help="a folder for the table and the program",
    )
    add("--tiny", action="store_true", help="trees an eighth as wide")
    return parser


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    for name, value in MEMORY.items():
        os.environ.setdefault(name, value)
    if args.command == "measure":
        return 1 if measure(args.file, args) else 0
    # Of a command buffer, which is a CUDA graph, a profile does not tell the kernels.
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_enable_command_buffer="
    print(profile(args.case, args.tree, args.way, args.out, args.tiny))
    return 0


if __name__ == "__main__":
    sys.exit(main())
