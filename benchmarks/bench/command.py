"""Measure, print and save."""

import argparse
import fnmatch
import importlib.util
import math
import sys
import time
from pathlib import Path
from typing import Any

import jax

from . import bandwidth, report, results
from .cases import CASES
from .display import open_display
from .measure import Plan, installed, measure, on_gpu
from .rounds import Limits
from .shapes import SHAPES


MOST = 100  # rounds, however vague a ratio is after them


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
    try:
        about, rows = results.read(args.from_file) if args.from_file else _new(args)
    except ValueError as error:
        print(error)
        return 2
    if rows:
        _conclude(rows, about, args)
    for each in about.get("failed", []):
        print(f"failed: {each}")
    if about.get("failed"):
        return 1
    return 0 if rows else 130


def _new(args):
    """Measure: the surroundings and all rows, those of the file included."""
    pairs = chosen(args.only, args.shapes)
    if not pairs:
        raise ValueError(f'nothing fits "{args.only}"; there are: {", ".join(CASES)}')
    # A cached program would seem to compile in no time.
    jax.config.update("jax_enable_compilation_cache", False)
    _say_what_is_missing()
    most = max(MOST, args.rounds)
    limits = Limits(args.rounds, most, args.seconds, args.interval / 100)
    plan = Plan(8 if args.quick else 1, limits, installed())
    about = results.surroundings(args.command, plan.divisor, limits)
    rows = results.kept(args.json, about)
    done = {(each["shape"], each["case"]) for each in rows}
    try:
        missing = [x for x in pairs if x not in done]
        measure_all(missing, plan, rows, about, args.json)
    except KeyboardInterrupt:
        print("ended early; these are the results so far")
    return about, rows


def _say_what_is_missing():
    needed = {
        "optax": "there are no ratios to Optax",
        "torch": "PyTorch is not compared",
        "rich": "there are plain lines and plain tables",
        "matplotlib": "there is no chart",
    }
    for name, so in needed.items():
        if importlib.util.find_spec(name) is None:
            print(f"{name} is not installed, so {so}: pip install {name}")


def measure_all(
    pairs: list[tuple[str, str]],
    plan: Plan,
    rows: list[dict],
    about: dict[str, Any],
    path: Path | None,
    until: float = math.inf,
) -> int:
    """Measure pairs of a tree and a case, add their rows, and save all of them.

    until: value of `time.monotonic` from which no further case is begun.

    Returns how many were not begun.
    """
    rate = bandwidth.copy_rate() if on_gpu() and pairs else None
    with open_display(len(pairs)) as display:
        for number, (shape, case) in enumerate(pairs):
            if time.monotonic() > until:
                return len(pairs) - number
            tell = lambda text, number=number: display.tell(text, number)
            try:
                found = _measured(shape, case, plan, tell)
            except Exception as error:  # such as too little memory; the others continue
                text = str(error).split("\n")[0]
                text = f"{shape}: {case}: {type(error).__name__}: {text}"
                about.setdefault("failed", []).append(text)
                display.write(text)
                continue
            if rate is not None:
                about["copy rate"] = rate
                bandwidth.add_rates(found, rate)
            rows += found
            display.finish(shape, case, found, number + 1, len(pairs))
            if path:
                results.save(rows, about, path)
    return 0


def _measured(shape, case, plan, tell):
    """The rows of a case."""
    for what, value in measure(shape, case, plan):
        if what == "done":
            return value
        tell(f"{shape}: {case}: {what} {value}")
    raise AssertionError("`measure` ends with all rows")


def ordered(rows: list[dict]) -> list[dict]:
    """Rows in the order of trees and cases, however they were measured."""
    shapes, cases = list(SHAPES), list(CASES)
    place = lambda each: (shapes.index(each["shape"]), cases.index(each["case"]))
    return sorted(rows, key=place)


def tables(rows: list[dict], about: dict) -> dict[str, report.Table]:
    """All tables of a run, by title."""
    width, is_quick, found = about["limits"]["width"], about["divisor"] > 1, {}
    # Programs that were compiled at once have no times but those of a step.
    has_stages = any("compile" in each for each in rows)
    for shape in dict.fromkeys(each["shape"] for each in rows if has_stages):
        title = f"{shape}: {SHAPES[shape].what}"
        title += ", an eighth as wide" if is_quick else ""
        title += "; ratios to Optax in parentheses"
        found[title] = report.times(rows, shape, width)
        found[f"{shape}: counts, Stepax / Optax"] = report.counts(rows, shape)
    if "copy rate" in about:
        found["steps on a GPU"] = report.on_device(rows, width)
    if not is_quick:
        found["goals"] = report.goals(rows)
    return found


def _conclude(rows, about, args):
    rows = ordered(rows)
    print(f"\n{report.in_words(about, rows)}")
    print(_MARKS.format(100 * about["limits"]["width"]))
    found = tables(rows, about)
    for title, table in found.items():
        print(f"\n{title}")
        _show(table)
    if args.json:
        print(f"all rounds: {args.json}")
    if args.markdown:
        text = (f"## {title}\n\n{report.markdown(x)}" for title, x in found.items())
        args.markdown.write_text("\n".join(text))
        print(f"these tables: {args.markdown}")
    if args.png and importlib.util.find_spec("matplotlib"):
        from .picture import draw, step_ratios

        if step_ratios(rows):
            draw(rows, chart_title(about), args.png)
            print(f"the chart: {args.png}")


_MARKS = (
    "Ratios are medians over the rounds; ~ marks those whose 95 % interval is not "
    "narrower than {:g} %."
)


def chart_title(about: dict) -> str:
    """The title of the chart."""
    versions = about["versions"]
    names = [f"{k} {versions[k]}" for k in ("optax", "jax") if versions[k]]
    return f"Stepax and Optax: {', '.join(names)}, Python {versions['python']}"


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
