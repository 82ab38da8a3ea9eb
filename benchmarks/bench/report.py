"""The tables of a run, as text and as Markdown."""

from collections.abc import Callable, Iterable
from typing import Any

from .goals import GOALS, digits, got, is_met, named
from .measure import IN_ONE, WAYS
from .ratios import QUANTITIES, Ratio


# By title: the quantity, the unit of the number shown, and its digits.
TIMES = {
    "step, ms": ("step", 1e-3, 2),
    "trace + lower, ms": ("trace + lower", 1e-3, 0),
    "compile, s": ("compile", 1, 2),
    "step without jit, ms": ("un-jitted", 1e-3, 1),
    "init, ms": ("init", 1e-3, 1),
}
COUNTS = {
    "equations": 0,
    "lines": 0,
    "fusions": 0,
    "bytes": 0,
    "temporaries": 1,
    "held": 1,
}
ON_DEVICE = {"bytes": 0, "held": 1}
TORCH = {
    "step / torch fused": "torch fused",
    "foreach": "torch foreach",
    "loop": "torch loop",
}
VAGUE = "~"  # before a ratio whose interval is wider than asked

Table = tuple[list[str], list[list[str]]]  # a header, and lines of as many cells


def times(rows: list[dict], shape: str, width: float) -> Table:
    """For each case and way: its times, and in parentheses their ratios to Optax."""
    lines = []
    for name, row, _ in _lines(rows, shape):
        line = [_beside(row, how, width) for how in TIMES.values()]
        torch = (shown(row, "step", rival, width) for rival in TORCH.values())
        lines.append([name, *line, *torch])
    return ["", *TIMES, *TORCH], lines


def counts(rows: list[dict], shape: str) -> Table:
    """For each case and way: its counts and, after a slash, those of Optax."""
    lines = []
    for name, row, theirs in _lines(rows, shape):
        pair = [x for x in (row, theirs) if x is not None]
        cells = (
            " / ".join(f"{x[key]:.{n}f}" for x in pair if key in x)
            for key, n in COUNTS.items()
        )
        lines.append([name, *cells])
    return ["", *COUNTS], lines


def _lines(rows, shape):
    """The rows of our ways, each with its name in a table and Optax's row."""
    at = {(row["case"], row["library"]): row for row in rows if row["shape"] == shape}
    for (case, library), row in at.items():
        if library in WAYS:
            name = f"{case}, fused" if library == IN_ONE else case
            yield name, row, at.get((case, "optax"))


def _beside(row, how, width):
    quantity, unit, precision = how
    keys = QUANTITIES[quantity]
    if not all(key in row for key in keys):
        return ""
    ratio = shown(row, quantity, "optax", width)
    time = f"{sum(row[key] for key in keys) / unit:.{precision}f}"
    return time + (f" ({ratio})" if ratio else "")


def shown(row: dict, quantity: str, rival: str, width: float) -> str:
    """A ratio as text, marked if it is vague; empty if it was not measured."""
    found = row.get("ratios", {}).get(rival, {}).get(quantity)
    if found is None:
        return ""
    is_known = None not in found and Ratio(*found).is_known(width)
    return f"{'' if is_known else VAGUE}{found[0]:.2f}"


def goals(rows: list[dict]) -> Table:
    """Each goal that the run has measured: the limit, the result, and its interval."""
    lines = []
    for goal in GOALS:
        result = got(goal, rows)
        if result is None:
            continue
        form = ".2f" if digits(goal) else ".1f"
        is_open = result.low is None or result.high is None
        interval = "" if is_open else f"{result.low:.2f} to {result.high:.2f}"
        # Unless it is a count, the limit may be within the interval.
        is_sure = goal.rival is None or (not is_open and not _is_between(goal, result))
        met = ("" if is_sure else VAGUE) + ("yes" if is_met(goal, result) else "no")
        value = f"{result.value:{form}}"
        lines.append([*named(goal), f"{goal.asked:g}", value, interval, met])
    head = ["goal", "on", "relative to", "at most", "result", "interval", "met"]
    return head, lines


def _is_between(goal, result):
    return result.low <= goal.asked <= result.high


def on_device(rows: list[dict], width: float) -> Table:
    """Steps on a GPU: their rate of memory traffic beside that of a copy.

    Bytes are those that XLA counts and plans to hold, ours before those of Optax.
    """
    at = {(row["shape"], row["case"], row["library"]): row for row in rows}
    lines = []
    for row in rows:
        if row["library"] in WAYS and "of copy" in row:
            way = ", fused" if row["library"] == IN_ONE else ""
            ratios = (shown(row, "step", x, width) for x in ("optax", *TORCH.values()))
            theirs = at.get((row["shape"], row["case"], "optax"))
            counts = (
                " / ".join(f"{x[key]:.{n}f}" for x in (row, theirs) if x)
                for key, n in ON_DEVICE.items()
            )
            time = f"{row['step'] / 1e-3:.2f}"
            lines.append(
                [row["case"] + way, row["shape"], time, *ratios]
                + [f"{row['of copy']:.2f}", *counts]
            )
    ratios = ["/ Optax", *(f"/ {x}" for x in TORCH.values())]
    return ["", "on", "step, ms", *ratios, "rate / copy", *ON_DEVICE], lines


def in_words(about: dict[str, Any], rows: list[dict]) -> str:
    """The surroundings of a run in two sentences."""
    versions = {k: v for k, v in about["versions"].items() if v}
    named = {"python": "Python", "jax": "JAX", "optax": "Optax", "torch": "PyTorch"}
    software = ", ".join(f"{named[k]} {versions[k]}" for k in named if k in versions)
    machine = about["machine"]
    kinds = {k: n for k, n in machine["devices"].items() if k != "cpu"}
    devices = "".join(f"{n} {kind}, " for kind, n in kinds.items())
    loads = [row["load"] for row in rows if row.get("load") is not None]
    load = (
        f"  The load average was {min(loads):.1f} to {max(loads):.1f}." if loads else ""
    )
    return (
        f"{about['date']}: {software}, on {devices}{machine['cores']} cores "
        f"({machine['processor']}), {machine['memory, GB']} GB, {machine['system']}."
        f"{load}"
    )


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
