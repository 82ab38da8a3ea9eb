"""Figures that evidence has: files of `docs/evidence`, and tables of pages."""

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

from . import user_reports


ROOT = Path(__file__).parents[2]
BENCH = "docs/evidence/bench/reference.json"
GPU = "docs/evidence/bench/h100.json"


@cache
def stored(path: str) -> dict:
    """A file of evidence."""
    return json.loads((ROOT / path).read_text())


def ratio(shape: str, case: str, key: str = "step", way: str = "stepax") -> float:
    """A ratio to Optax of the reference run: the median of its rounds."""
    rows = stored(BENCH)["rows"]
    (row,) = [
        x for x in rows if (x["shape"], x["case"], x["library"]) == (shape, case, way)
    ]
    return row["ratios"]["optax"][key][0]


def seconds(shape: str, case: str, key: str, library: str = "optax") -> float:
    """A time of the reference run."""
    rows = stored(BENCH)["rows"]
    here = (shape, case, library)
    return next(x[key] for x in rows if (x["shape"], x["case"], x["library"]) == here)


def versus_torch(case: str) -> float:
    """A ratio to PyTorch's fused step in the reference run."""
    found = [
        x["ratios"]["torch fused"]["step"][0]
        for x in stored(BENCH)["rows"]
        if (x["shape"], x["case"], x["library"]) == ("large", case, "stepax")
    ]
    return found[0]


def on_gpu(case: str, shapes: tuple[str, ...] = (), way: str = "stepax") -> str:
    """The ratios to Optax on a GPU, from the lowest to the highest.

    shapes: trees; all that were measured if empty.
    """
    found = [
        f"{x['ratios']['optax']['step'][0]:.2f}"
        for x in stored(GPU)["rows"]
        if (x["case"], x["library"]) == (case, way)
        and (not shapes or x["shape"] in shapes)
    ]
    if not found:
        return "not measured"
    return found[0] if min(found) == max(found) else f"{min(found)} to {max(found)}"


def gpu() -> str:
    """The GPU of that run, in words."""
    (name,) = stored(GPU)["about"]["machine"]["devices"]
    return f"one {name.split()[1]}"


def machine() -> str:
    """The machine of the reference run."""
    return f"{stored(BENCH)['about']['machine']['cores']} CPU cores"


def cells(page: str, first: str) -> list[list[str]]:
    """The rows of a table whose first column is, or begins with, this."""
    rows = (ROOT / page).read_text().splitlines()
    found = [[x.strip() for x in row.strip("|").split("|")] for row in rows]
    return [row for row in found if row[0].startswith(first) and len(row) > 1]


class Reports(NamedTuple):
    """What the tests of reported problems count."""

    tests: int
    cases: int
    stepax: int
    optax: int


@cache
def reports() -> Reports:
    """The sums of the last run of `website.tables.user_reports`."""
    rows = user_reports.stored()
    passed = lambda cell: int(cell.partition(" of ")[0])
    cases = sum(int(row[2].rpartition(" of ")[2]) for row in rows)
    ours, theirs = (sum(passed(row[i]) for row in rows) for i in (2, 3))
    return Reports(len(rows), cases, ours, theirs)


def replayed() -> tuple[int, float]:
    """How many runs of authors are replayed, and the largest error in float64."""
    text = (ROOT / "docs/references.md").read_text()
    table = text.partition("<!-- table -->")[2].partition("<!-- end -->")[0]
    errors = [float(x.split("|")[4]) for x in table.splitlines() if "`" in x]
    return len(errors), max(errors)


def solved(solver: str) -> str:
    """How many of the 109 functions a solver minimizes in float64."""
    return cells("docs/minimize-benchmark.md", solver)[0][1]


def muon_on_a_mesh(method: str) -> tuple[str, str]:
    """The collectives and the milliseconds of Muon on sharded matrices."""
    rows = cells("docs/distributed_matrices.md", "sharded")
    (row,) = [x for x in rows if x[1] == method]
    return row[2], f"{int(row[5]):,}"


def two(x: float) -> str:
    return f"{x:.2f}"


def whole(x: float) -> str:
    return f"{x:,}"
