"""Steps on a GPU: what they take beside Optax and PyTorch, and where the time goes.

Install JAX for your GPU, Optax and PyTorch, and run in the root of the repository:

    python -m benchmarks.gpu measure h100.json
    python -m benchmarks.gpu profile "clip + adamw" --tree gpt1b --out .
    python -m benchmarks.on_gpu

1. `measure` takes steps on trees of 124 million and of a billion parameters: seconds,
   bytes beside the bandwidth of a copy in the same run, and the memory that XLA plans.
   It ends after `--minutes`, by default 7; the same command then goes on, and says when
   nothing is left.  A case has a process of its own: one that fails, as for want of
   memory, is named and left out.  Expect 15 to 25 minutes in all, mostly of compiling.
2. `profile` takes some steps of a case, in one to three minutes, and prints kernels:
   how often they run in a step, for how long, how fast they read and write.  The table
   and the optimized program are files in `--out`.  Look first for kernels far below the
   bandwidth of a copy; if all kernels together take much less time than the step, the
   host is too slow.  `--way` is `stepax`, `stepax.step` or `optax`.
3. `on_gpu` compares all optimizers with the same on a CPU, and measures `offload`;
   about five minutes.

A file of `measure` in docs/evidence/bench becomes tables of docs/bench.md by `make
bench-pages`; `python -m benchmarks.bench --from h100.json` prints them.  `--tiny` tries
the commands in narrow trees, on a CPU as well.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax

from benchmarks.bench import report, results
from benchmarks.bench.cases import CASES, GPTS
from benchmarks.bench.measure import installed, make_runners, ways
from benchmarks.bench.rounds import timed
from benchmarks.bench.shapes import SHAPES, abstract, filled, size

from . import kernels


TINY = 8  # divisor of widths
LIMITS = "--rounds", "5", "--seconds", "6"
# PyTorch needs memory as well, in the same process.
MEMORY = {
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.95",
}
STEPS = 3  # periods that a profile has


def pairs() -> list[tuple[str, str]]:
    """Trees and cases, those last that take longest to compile.

    SOAP, whose decompositions are programs of their own for each matrix, is on a narrow
    tree as well: on GPT-2 it compiles for minutes.
    """
    found = [
        (shape, name)
        for shape in (*reversed(GPTS), "gpt256")
        for name, case in CASES.items()
        if shape in case.shapes + case.on_gpu
    ]
    is_slow = lambda name: name.startswith(("muon", "soap"))
    return sorted(found, key=lambda x: (is_slow(x[1]), x == ("gpt2", "soap")))


def measure(path: Path, minutes: float, tiny: bool) -> list[str]:
    """Measure what the file lacks, and return what failed."""
    rows = results.read(path)[1] if path.exists() else []
    done = {(row["shape"], row["case"]) for row in rows}
    missing = [pair for pair in pairs() if pair not in done]
    end, failed = time.monotonic() + 60 * minutes, []
    for i, (shape, name) in enumerate(missing):
        try:
            told = _measured(shape, name, path, tiny, end - time.monotonic())
        except subprocess.TimeoutExpired:
            print(f"{len(missing) - i} left; the same command goes on")
            break
        except RuntimeError as error:
            told = f"failed: {error}"
            failed.append(f"{name} on {shape}")
        print(f"{name} on {shape}: {told}", flush=True)
    else:
        print(f"nothing left; failed: {', '.join(failed) or 'none'}")
    if path.exists():
        about, rows = results.read(path)
        about["commands"] = ["python -m benchmarks.gpu measure"]
        results.save(rows, about, path)
    return failed


def _measured(shape, name, path, tiny, seconds):
    """Measure a case in a process of its own; returns what it tells."""
    # A pattern of this name alone, as a plain word is in other names, too.
    only = f"[{name[0]}]{name[1:]}"
    words = ["--shapes", shape, "--only", only, "--json", str(path), *LIMITS]
    words += ["--png", str(path.with_suffix(".png")), *["--quick"][: int(tiny)]]
    process = subprocess.run(
        [sys.executable, "-m", "benchmarks.bench", *words],
        capture_output=True,
        text=True,
        timeout=max(seconds, 0),
        env=os.environ | MEMORY,
    )
    lines = (process.stdout + process.stderr).strip().splitlines() or ["no output"]
    if process.returncode:
        raise RuntimeError(lines[-1])
    found = [x for x in lines if re.match(r" *1/1 ", x)]
    return re.sub(r"^.*?  step ", "", found[0]) if found else lines[-1]


def profile(name: str, tree: str, library: str, folder: Path, tiny: bool) -> str:
    """The table of the kernels of a case, which is written into the folder as well."""
    case, shapes = CASES[name], SHAPES[tree].make(TINY if tiny else 1)
    way = ways(case, installed())[library]
    built = way.build(way.make(), abstract(shapes, case.dtype))
    program: Any = built.run
    fill = lambda seed, scale: filled(shapes, seed, scale, case.dtype)
    run = make_runners({library: way}, {library: built}, fill(0, 1.0), fill(1, 1e-2))[
        library
    ]
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


def _memory(built: Any, numbers: int) -> str:
    """Bytes for each parameter, as XLA plans them and as the device has seen them."""
    plan = {k: built.counts[k] for k in ("bytes", "temporaries", "held")}
    told = ", ".join(f"{k} {x:.1f}" for k, x in plan.items())
    peak = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    seen = "" if peak is None else f"; at the peak of this process {peak / numbers:.1f}"
    return f"for each parameter: {told}{seen}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("measure").add_argument
    add("file", type=Path, help="the results, a .json; what it has is not repeated")
    add("--minutes", type=float, default=7.0, help="then end (default: %(default)g)")
    add("--tiny", action="store_true", help="trees an eighth as wide")
    add = commands.add_parser("profile").add_argument
    add("case", choices=list(CASES), metavar="CASE", help=", ".join(CASES))
    add("--tree", choices=list(SHAPES), default="gpt1b")
    add("--way", choices=("stepax", "stepax.step", "optax"), default="stepax.step")
    add(
        "--out",
        type=Path,
        default=Path("."),
        help="a folder for the table and the program",
    )
    add("--tiny", action="store_true", help="trees an eighth as wide")
    args = parser.parse_args(argv)
    if args.command == "measure":
        return 1 if measure(args.file, args.minutes, args.tiny) else 0
    print(profile(args.case, args.tree, args.way, args.out, args.tiny))
    return 0


if __name__ == "__main__":
    sys.exit(main())
