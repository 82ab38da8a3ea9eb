"""The tables of a run, as text, as Markdown, and as a JSON file."""

import json
import platform
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax

from .goals import GOALS, got, named, total


PACKAGES = ("stepax", "jax", "jaxlib", "optax", "torch", "numpy")

# By title: the keys of a row, the unit of the number shown, and its digits.
TIMES = {
    "step, ms": (("step",), 1e-3, 2),
    "trace + lower, ms": (("trace", "lower"), 1e-3, 0),
    "compile, s": (("compile",), 1, 2),
    "update without jit, ms": (("un-jitted",), 1e-3, 1),
    "init, ms": (("init",), 1e-3, 1),
}
COUNTS = {
    "equations": (("equations",), 1, 0),
    "lines": (("lines",), 1, 0),
    "fusions": (("fusions",), 1, 0),
    "bytes": (("bytes",), 1, 0),
    "temporaries": (("temporaries",), 1, 1),
    "held": (("held",), 1, 1),
}


def surroundings(command: list[str], divisor: int) -> dict[str, Any]:
    """The environment of a result: versions, machine, devices, trees, and command."""
    return {
        "divisor": divisor,
        "command": " ".join(["python -m stepax", *command]),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "machine": f"{platform.system()} {platform.machine()}",
        "devices": [str(device) for device in jax.devices()],
    }


def kept(path: Path | None, about: dict[str, Any]) -> list[dict]:
    """The rows of an earlier run with the same versions and trees, if there is one.

    Raises a `ValueError` if the file is from a different environment.
    """
    if path is None or not path.exists():
        return []
    found = json.loads(path.read_text())
    for name in ("versions", "divisor"):
        if found["about"][name] != about[name]:
            raise ValueError(
                f"{path} is of a run with other {name}, {found['about'][name]}; "
                "give another name, or remove it"
            )
    return found["rows"]


def _version(package):
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def save(rows: list[dict], about: dict, path: Path) -> None:
    path.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


Table = tuple[list[str], list[list[str]]]  # a header, and lines of as many cells


def times(rows: list[dict], shape: str) -> Table:
    """For each case: the time of Stepax, and in parentheses its ratio to the others."""
    header = ["", *TIMES, "step / torch fused", "foreach", "loop"]
    lines = []
    for case, found in _cases(rows, shape).items():
        line = [_beside(found, *how) for how in TIMES.values()]
        ways = ("torch fused", "torch foreach", "torch loop")
        lines.append([case, *line, *(_ratio(found, ("step",), way) for way in ways)])
    return header, lines


def counts(rows: list[dict], shape: str) -> Table:
    """For each case: the counts of Stepax and, after a slash, of Optax."""
    lines = []
    for case, found in _cases(rows, shape).items():
        pair = [found[name] for name in ("stepax", "optax") if name in found]
        show = lambda row, keys, unit, digits: f"{row[keys[0]] / unit:.{digits}f}"
        cells = (" / ".join(show(x, *how) for x in pair) for how in COUNTS.values())
        lines.append([case, *cells])
    return ["", *COUNTS], lines


def _cases(rows, shape):
    found: dict[str, dict[str, dict]] = {}
    for row in rows:
        if row["shape"] == shape:
            found.setdefault(row["case"], {})[row["library"]] = row
    return {case: row for case, row in found.items() if "stepax" in row}


def _beside(found, keys, unit, digits):
    ours = total(found["stepax"], keys) / unit
    if ours != ours:
        return ""
    ratio = _ratio(found, keys, "optax")
    return f"{ours:.{digits}f}" + (f" ({ratio})" if ratio else "")


def _ratio(found, keys, rival):
    ratio = total(found["stepax"], keys) / total(found.get(rival, {}), keys)
    return f"{ratio:.2f}" if ratio == ratio else ""


def goals(rows: list[dict]) -> Table:
    """Each goal that the run has measured: the limit, and the result."""
    lines = []
    for goal in GOALS:
        value = got(goal, rows)
        if value is None:
            continue
        # Counts are compared as displayed: a few scalars do not amount to an array.
        is_met = round(value, 2 if goal.rival else 0) <= goal.asked
        shown = f"{value:.2f}" if goal.rival else f"{value:.1f}"
        lines.append(
            [*named(goal), f"{goal.asked:g}", shown, "yes" if is_met else "no"]
        )
    return ["goal", "on", "relative to", "at most", "result", "met"], lines


def markdown(table: Table) -> str:
    header, lines = table
    rows = [header, ["---"] * len(header), *lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows) + "\n"


def plain(table: Table) -> str:
    """A table for a terminal, in columns."""
    header, lines = table
    rows = [header, *lines]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    pad: Callable[[Iterable], str] = lambda row: "  ".join(
        cell.ljust(width) if i == 0 else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return "\n".join(pad(row).rstrip() for row in rows) + "\n"
