"""The command `bench`: measure, print and save."""

import argparse
import fnmatch
import importlib.util
import sys

import jax

from . import bandwidth, report
from .cases import CASES
from .display import open_display
from .measure import Plan, installed, measure, on_gpu, row
from .shapes import SHAPES, size


def chosen(only: str, shapes: list[str] | None) -> list[tuple[str, str]]:
    """Pairs of a tree and a case whose name contains `only`, or matches it as a glob.

    Cases that are slow on a CPU are measured there only if their tree is requested.
    """
    fits = lambda name: only in name or fnmatch.fnmatch(name, only)
    is_patient = shapes is not None or on_gpu()
    return [
        (shape, name)
        for shape in shapes or SHAPES
        for name, case in CASES.items()
        if shape in case.shapes + (case.on_gpu if is_patient else ()) and fits(name)
    ]


def run(args: argparse.Namespace) -> int:
    """Run the benchmark; the exit code is 2 if there is nothing to measure."""
    pairs = chosen(args.only, args.shapes)
    if not pairs:
        print(f'nothing fits "{args.only}"; there are: {", ".join(CASES)}')
        return 2
    # A cached program would seem to compile in no time.
    jax.config.update("jax_enable_compilation_cache", False)
    _say_what_is_missing(args)
    plan = Plan(8 if args.quick else 1, args.rounds, installed())
    about = report.surroundings(args.command, plan.divisor)
    try:
        rows = report.kept(args.json, about)
    except ValueError as error:
        print(error)
        return 2
    done = {(each["shape"], each["case"]) for each in rows}
    pairs = [pair for pair in pairs if pair not in done]
    try:
        _measure_all(pairs, plan, rows, about, args)
    except KeyboardInterrupt:
        print("ended early; these are the results so far")
    if rows:
        _conclude(rows, about, args)
    return 0 if rows else 130


def _say_what_is_missing(args):
    needed = {
        "optax": "there are no ratios to Optax",
        "torch": "PyTorch is not compared",
        "rich": "there are plain lines and plain tables",
        "matplotlib": "there is no chart",
    }
    for name, so in needed.items():
        if importlib.util.find_spec(name) is None:
            print(f"{name} is not installed, so {so}: pip install {name}")


def _measure_all(pairs, plan, rows, about, args):
    rate = bandwidth.copy_rate() if on_gpu() else None
    about["copy rate"] = rate
    with open_display(len(pairs)) as display:
        for number, (shape, case) in enumerate(pairs):
            found = []
            for what, value in measure(shape, case, plan):
                if what == "done":
                    found = [row(shape, case, k, x) for k, x in value.items()]
                else:
                    display.tell(f"{shape}: {case}: {what} {value}", number)
            arrays, numbers = size(SHAPES[shape].make(plan.divisor))
            for each in found:
                each.update(arrays=arrays, numbers=numbers)
                if "lines" in each:
                    each["lines per array"] = each["lines"] / arrays
            if rate is not None:
                bandwidth.add_rates(found, rate)
            rows += found
            display.finish(shape, case, found, number + 1, len(pairs))
            if args.json:
                report.save(rows, about, args.json)


def _conclude(rows, about, args):
    shapes, cases = list(SHAPES), list(CASES)
    place = lambda each: (shapes.index(each["shape"]), cases.index(each["case"]))
    rows = sorted(rows, key=place)
    tables = []
    for shape in dict.fromkeys(each["shape"] for each in rows):
        what = SHAPES[shape].what
        title = f"{shape}: {what}" + (", an eighth as wide" if args.quick else "")
        tables.append(
            (f"{title}; ratios to Optax in parentheses", report.times(rows, shape))
        )
        tables.append((f"{shape}: counts, Stepax / Optax", report.counts(rows, shape)))
    if not args.quick:
        tables.append(("goals", report.goals(rows)))
    for title, table in tables:
        print(f"\n{title}")
        _show(table)
    if args.json:
        print(f"all rounds: {args.json}")
    if args.markdown:
        text = (f"## {title}\n\n{report.markdown(table)}" for title, table in tables)
        args.markdown.write_text("\n".join(text))
        print(f"these tables: {args.markdown}")
    if args.png and importlib.util.find_spec("matplotlib"):
        from .picture import draw, step_ratios

        if step_ratios(rows):
            draw(rows, _title(about), args.png)
            print(f"the chart: {args.png}")


def _title(about):
    versions = about["versions"]
    names = [f"{k} {versions[k]}" for k in ("optax", "jax") if versions[k]]
    return f"Stepax and Optax: {', '.join(names)}, Python {about['python']}"


def _show(table):
    if importlib.util.find_spec("rich") is None or not sys.stdout.isatty():
        print(report.plain(table))
        return
    from rich.console import Console
    from rich.table import Table

    header, lines = table
    shown = Table()
    for i, name in enumerate(header):
        shown.add_column(name, justify="right" if i else "left")
    for line in lines:
        shown.add_row(*line)
    Console().print(shown)
