"""Compare Stepax with other libraries on more than a hundred minimization problems.

Run it with `make bench-minimize`, or `python -m studies.minimize --only "wood*"`.
If interrupted, it prints the table of the problems it has run; `--json FILE` stores the
results, and the next run with that file continues from there.

A problem is solved if a solver stops, after at most 5,000 evaluations, with

    f - f* <= tol max(1, |f*|)   or   max |g| <= tol max(1, |f*|),

where the second accepts minima other than the published one; with bounds, g stands for
x - P(x - g).  tol is 1e-6 in float64 and 1e-4 in float32, whose relative rounding error
of 1e-7 in the value hides changes of the parameters below its square root.  Each solver
is given the second inequality as its stopping criterion.

Tracing, lowering and compilation are timed once per problem; the time of a run is the
median of several, with the solvers taking turns.  `--fast` counts evaluations only: XLA
compiles without optimizations, in half the time, and times are not shown.  `--bounded`
selects problems with bounds and solvers that support them, `--further` 51 more problems
without bounds, and `--all` all problems without bounds.

With `--defaults`, Stepax and SciPy use their default stopping criteria.

A checksum of its name assigns each problem to one of two halves.  Change the minimizer
looking only at the tuning half (`--half tuning`) until no choice is left; the table
shows both.
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from tests import problems

from .performance_profile import draw
from .solvers import BOUNDED, BUDGET, SOLVERS, WITH_DEFAULTS, Job, installed


TOLERANCE = {"float32": 1e-4, "float64": 1e-6}
LONG = 1.0  # seconds after which a run is not repeated


def begin(problem, name, x0, tol) -> Job | None:
    """A job, or `None` if the library fails."""
    # A new function for each solver, so that none reuses the trace of another.
    fun = lambda x: problem.fun(x)
    bounds = [] if problem.lower is None else [(problem.lower, problem.upper)]
    try:
        return SOLVERS[name](fun, x0, tol, *bounds)
    except Exception as error:
        print(f"{name} fails on {problem.name}: {str(error)[:200]}", flush=True)
        return None


def once(job):
    """The result of a run, and its time in seconds."""
    start = time.perf_counter()
    found = job.run()
    return found, time.perf_counter() - start


def measure(problem, names, dtype, rounds, turn, defaults=False):
    """A row for each solver; `turn` rotates which of them runs first.

    defaults: whether they use their default tolerances.
    """
    x0 = jnp.asarray(problem.x0, dtype)
    size = max(1.0, abs(problem.minimum))
    tol = TOLERANCE[dtype]
    given = None if defaults else tol * size
    names = names[turn % len(names) :] + names[: turn % len(names)]
    jobs = {name: begin(problem, name, x0, given) for name in names}
    jobs = {name: job for name, job in jobs.items() if job is not None}
    found, seconds = {}, {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            if sum(seconds[name]) < LONG:
                found[name], passed = once(job)
                seconds[name].append(passed)
    both = jax.jit(jax.value_and_grad(problem.fun))
    rows = []
    for name, (x, evaluations) in found.items():
        x = jnp.asarray(x, dtype)
        value, grad = both(x)
        excess = (float(value) - problem.minimum) / size
        if problem.lower is not None:
            grad = x - jnp.clip(x - grad, *_sides(problem, dtype))
        slope = float(jnp.max(jnp.abs(grad))) / size
        reached = excess <= tol or slope <= tol  # false where one is NaN
        rows.append(
            {
                "problem": problem.name,
                "n": int(x0.size),
                "solver": name,
                "solved": bool(reached and int(evaluations) <= BUDGET + 50),
                "evaluations": int(evaluations),
                "excess": excess,
                "gradient": slope,
                "compile": jobs[name].seconds,
                "run": statistics.median(seconds[name]),
            }
        )
    return rows


def _sides(problem, dtype):
    return [jnp.asarray(side, dtype) for side in (problem.lower, problem.upper)]


def choose(args):
    """The selected problems."""
    files = problems.FURTHER if args.further else problems.FREE
    files = problems.FREE + problems.FURTHER if args.all else files
    files = ("bounded",) if args.bounded else files
    found = problems.collect(args.only, files)
    return [p for p in found if args.half in (None, problems.half(p.name))]


def warm_up(names, dtype):
    """Import and compile what all runs share, so that it is not timed in the first."""
    easy = problems.collect("himmelblau")[0]
    for name in names:
        begin(easy, name, jnp.asarray(easy.x0, dtype), 1e-3)


def run_all(args, names, rows, save):
    """Measure what is missing in `rows`, and add it."""
    done = {(row["problem"], row["solver"]) for row in rows}
    chosen = choose(args)
    if not chosen:
        raise SystemExit(f"no problem is called {args.only!r}")
    text = TextColumn("{task.description}")
    with Progress(text, BarColumn(), MofNCompleteColumn()) as progress:
        task = progress.add_task("imports", total=len(chosen))
        warm_up(names, args.dtype)
        for turn, problem in enumerate(chosen):
            progress.update(task, description=f"{problem.name:33}")
            missing = [name for name in names if (problem.name, name) not in done]
            if missing:
                more = args.dtype, args.rounds, turn, args.defaults
                rows += measure(problem, missing, *more)
                save(rows)
            progress.advance(task)


# --- the table -----------------------------------------------------------------------


def ratios(rows, solver, base, key, solved=True):
    """(ratio, problem) where both have a row and, if asked, both solve it."""
    at = {(row["solver"], row["problem"]): row for row in rows}
    found = []
    for (name, problem), row in at.items():
        other = at.get((base, problem))
        if name != solver or other is None:
            continue
        if not solved or row["solved"] and other["solved"]:
            found.append((row[key] / other[key], problem))
    return sorted(found)


def middle(found):
    return f"{statistics.median(x for x, _ in found):.2f}" if found else ""


def line(rows, solver, is_timed=True):
    """The row of a solver in the table."""
    own = [row for row in rows if row["solver"] == solver]
    solved = sum(row["solved"] for row in own)
    beside = ratios(rows, solver, "scipy", "evaluations")
    is_told = beside and solver != "scipy"
    worst = f"{beside[-1][0]:.2f} ({beside[-1][1]})" if is_told else ""
    evaluations = [row["evaluations"] for row in own if row["solved"]]
    found = [solver, f"{solved} of {len(own)}", str(sum(evaluations))]
    found += [middle(beside), worst]
    return found + (times(rows, own, solver) if is_timed else [""] * 3)


def times(rows, own, solver):
    """Compile time in seconds, its ratio to Optax's, and the ratio of a run."""
    seconds = f"{statistics.median(row['compile'] for row in own):.2f}"
    if solver in ("scipy", "torch"):
        return [seconds, "", ""]  # only the function is compiled
    compilation = ratios(rows, solver, "optax", "compile", solved=False)
    runs = ratios(rows, solver, "optax", "run")
    return [seconds, middle(compilation), middle(runs)]


# Evaluations are summed over the problems that the solver solves; their ratios are over
# those that SciPy solves, too.
HEADER = ["solver", "solved", "evaluations", "/ SciPy", "worst", "compile, s"]
HEADER += ["/ Optax", "run / Optax"]
MISSES = ["problem", "n", "solved by", "not by"]


def misses(rows):
    """(problem, n, who solves it, who does not) for each that not all solve."""
    found = []
    for name in dict.fromkeys(row["problem"] for row in rows):
        mine = [row for row in rows if row["problem"] == name]
        by = {x: [r["solver"] for r in mine if r["solved"] is x] for x in (True, False)}
        if by[False]:
            solve, fail = (", ".join(by[x]) for x in (True, False))
            found.append([name, str(mine[0]["n"]), solve or "nobody", fail])
    return found


def tables(rows, names, is_timed):
    """The lines for all problems and for each half: (which, lines)."""
    found = [("all problems", rows)]
    for half in problems.HALVES:
        mine = [row for row in rows if problems.half(row["problem"]) == half]
        found.append((f"the {half} half", mine))
    of = lambda mine: [name for name in names if any(r["solver"] == name for r in mine)]
    return [
        (which, [line(mine, name, is_timed) for name in of(mine)])
        for which, mine in found
    ]


def show(rows, parts, console):
    for which, lines in parts:
        table = Table(*HEADER, title=which)
        for found in lines:
            table.add_row(*found)
        console.print(table)
    table = Table(*MISSES)
    for found in misses(rows):
        table.add_row(*found)
    if table.row_count:
        console.print(table)


def in_markdown(rows, parts):
    """The tables, with a column that names the half, and that of unsolved problems."""
    header = ["problems", *HEADER]
    lines = [[which, *found] for which, part in parts for found in part]
    return "\n".join([*_rows(header, lines), "", *_rows(MISSES, misses(rows)), ""])


def _rows(header, lines):
    cells = [header, ["---"] * len(header), *lines]
    return [f"| {' | '.join(row)} |" for row in cells]


def arguments():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--dtype", choices=TOLERANCE, default="float64", help="precision"
    )
    parser.add_argument("--only", default="*", help="part of the name, or a pattern")
    parser.add_argument(
        "--solvers",
        nargs="+",
        choices=SOLVERS,
        metavar="NAME",
        help=f"some of {', '.join(SOLVERS)} (default: all that are installed)",
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="timed runs per solver and problem"
    )
    parser.add_argument("--json", type=Path, help="store the results in this file")
    parser.add_argument(
        "--png", type=Path, help="plot the performance profile in this file"
    )
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    parser.add_argument(
        "--fast", action="store_true", help="evaluations only, no times"
    )
    parser.add_argument("--bounded", action="store_true", help="problems with bounds")
    parser.add_argument("--further", action="store_true", help="51 further problems")
    parser.add_argument(
        "--all", action="store_true", help="all problems without bounds"
    )
    parser.add_argument("--half", choices=problems.HALVES, help="only one half")
    parser.add_argument(
        "--defaults", action="store_true", help="use each library's default tolerances"
    )
    parser.add_argument(
        "--show", action="store_true", help="run nothing, show the stored results"
    )
    return parser.parse_args()


def kept(file, dtype):
    """The rows stored in a file, if it exists."""
    if file is None or not file.exists():
        return []
    found = json.loads(file.read_text())
    if found["dtype"] != dtype:
        raise SystemExit(
            f"{file} has results for {found['dtype']}; choose another file"
        )
    return found["rows"]


def main():
    args = arguments()
    if args.fast:  # JAX reads it when it initializes its backend, later
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_backend_optimization_level=0"
    jax.config.update("jax_enable_x64", args.dtype == "float64")
    names, rows = args.solvers or installed(), kept(args.json, args.dtype)
    names = [name for name in names if not args.bounded or name in BOUNDED]
    names = [name for name in names if not args.defaults or name in WITH_DEFAULTS]

    def save(rows):
        if args.json:
            found = {"dtype": args.dtype, "jax": jax.__version__, "rows": rows}
            args.json.write_text(json.dumps(found, indent=0))

    if not args.show:
        try:
            run_all(args, names, rows, save)
        except KeyboardInterrupt:
            print("interrupted; these are the results so far")
    names = [name for name in names if any(row["solver"] == name for row in rows)]
    if not rows:
        raise SystemExit("there are no results")
    parts = tables(rows, names, not args.fast)
    show(rows, parts, Console())
    if args.markdown:
        args.markdown.write_text(in_markdown(rows, parts))
    if args.png:
        args.png.parent.mkdir(parents=True, exist_ok=True)
        draw(rows, names, args.png, f"{args.dtype}, at most {BUDGET:,} evaluations")
        print(f"the performance profile is in {args.png}")


if __name__ == "__main__":
    main()
