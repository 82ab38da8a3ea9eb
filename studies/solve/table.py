"""Tables of results: printed while they are measured, kept as evidence, on the page.

`studies/evidence/solve.json` has the last results of each benchmark, and
`docs/evidence/solving.md` shows them between marks.
"""

import json
import platform
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from website.tables.parts import write_table, wrong_lines


ROOT = Path(__file__).parents[2]
PAGE, STORED = "docs/evidence/solving.md", "studies/evidence/solve.json"
GOALS = ["figure", "asked", "got"]
PEERS = "jax", "numpy", "scipy", "optimistix", "scikit-learn"


class Table(NamedTuple):
    """head, rows: the cells of a table; the page leaves out those without rows.

    goals: what is measured, what is asked, and what was found.
    """

    head: list[str]
    rows: list[list[str]]
    goals: list[list[str]]


def line(*cells: object) -> list[str]:
    """Print a row, and return its cells."""
    row = [str(x) for x in cells]
    print(_markdown(row), flush=True)
    return row


def head(*cells: str) -> list[str]:
    row = line(*cells)
    line(*["---"] * len(cells))
    return row


def goal(what: str, asked: str, got: str) -> list[str]:
    print(f"{what}: asked {asked}, got {got}", flush=True)
    return [what, asked, got]


def stored() -> dict:
    path = ROOT / STORED
    return json.loads(path.read_text()) if path.exists() else {}


def store(name: str, command: str, found: Table) -> None:
    """Keep what a command has found, and write it into the page."""
    about = {
        "command": command,
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "versions": {x: version(x) for x in PEERS},
    }
    results = stored() | {name: about | found._asdict()}
    (ROOT / STORED).write_text(_text(results))
    for mark, lines in parts(results).items():
        write_table(ROOT / PAGE, lines, mark, f"end {mark}")


def parts(results: dict) -> dict[str, list[str]]:
    """The parts of the page: all figures, and a table for each benchmark with rows."""
    rows = [row for found in results.values() for row in found["goals"]]
    tables = {k: [x["head"], *x["rows"]] for k, x in results.items() if x["rows"]}
    lines = lambda head, *rows: [
        _markdown(x) for x in (head, ["---"] * len(head), *rows)
    ]
    return {"goals": lines(GOALS, *rows)} | {k: lines(*x) for k, x in tables.items()}


def wrong() -> Iterator[str]:
    """Each line of the page that is not what the evidence says."""
    for mark, lines in parts(stored()).items():
        yield from wrong_lines(ROOT / PAGE, lines, PAGE, STORED, mark, f"end {mark}")


def _markdown(row: list[str]) -> str:
    return f"| {' | '.join(row)} |"


def _text(results: dict) -> str:
    """JSON with a line for each row, so that differences can be read."""
    one = lambda key, x: (
        f'"{key}": [\n' + ",\n".join(map(json.dumps, x)) + "\n]"
        if key in ("rows", "goals")
        else f'"{key}": {json.dumps(x)}'
    )
    each = (
        f'"{name}": {{\n' + ",\n".join(one(k, x) for k, x in found.items()) + "\n}"
        for name, found in results.items()
    )
    return "{\n" + ",\n".join(each) + "\n}\n"
