"""Bytes that a step moves, by two calls and in one, beside Optax's.

Run it with `python -m studies.step`; a word, as in `python -m studies.step lamb`,
chooses cases, and `--write` puts the table into `docs/step.md`.  The counts are XLA's,
and exact; times are measured by `python -m benchmarks.bench`.
"""

import argparse
from pathlib import Path

from benchmarks.bench.cases import CASES
from benchmarks.bench.measure import ways
from benchmarks.bench.shapes import abstract
from website.tables.parts import write_table


PAGE = Path(__file__).parents[1] / "docs" / "step.md"
MARK = "step: written by `python -m studies.step --write`"
SIDE = 512
ARRAY = {"w": (SIDE, SIDE)}
CHOSEN = (
    "adamw",
    "lion",
    "lamb",
    "adafactor",
    "zero_nans + adamw",
    "schedule_free_adamw",
    "prodigy",
)


def row(name: str) -> list[str]:
    """Bytes for each parameter, those of temporaries after the plus."""
    case = CASES[name]
    cells = [name]
    found = ways(case, ("stepax", "optax"))
    for library in ("optax", "stepax", "stepax.step"):
        way = found[library]
        counts = way.build(way.make(), abstract(ARRAY, case.dtype)).counts
        cells.append(f"{counts['bytes']:.0f} + {counts['temporaries']:.0f}")
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("word", nargs="?", default="", help="a part of names of cases")
    parser.add_argument("--write", action="store_true", help="write the table")
    asked = parser.parse_args()
    head = ["", "Optax", "two calls", "`step`"]
    rows = [head, ["---"] * len(head)]
    for name in CHOSEN:
        if asked.word in name:
            rows.append(row(name))
            print(*rows[-1], sep="  ", flush=True)
    if asked.write:
        write_table(PAGE, (f"| {' | '.join(row)} |" for row in rows), MARK)


if __name__ == "__main__":
    main()
