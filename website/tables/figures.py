"""Figures in the prose of README.md and docs: each is backed by evidence.

A measured figure in a sentence is one of two: computed here, from a file in
`docs/evidence` or from a table that a command writes (`CLAIMS`); or recorded in
`docs/evidence/figures.json`, with the condition under which it was measured and the
command, because its run was not kept.  `wrong` finds sentences with figures that are
neither, and figures that have changed.  `python -m website.tables.figures` lists them,
and writes the tables and the picture of README.md.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.bench.cases import GPTS

from .measured import GPU, ROOT, ratio, reports, seconds, stored, two, whole
from .parts import write_table, wrong_lines
from .summaries import PICTURE, README, TABLES, picture


RECORDED = "docs/evidence/figures.json"

# Sentences with a measured figure: a time, a rate, or a ratio of times or evaluations.
MEASURED = re.compile(
    r"\d ?(?:ms|µs|ns|TB/s)\b|\d(?: to [\d.]+)? s\b|\d seconds of\b|\d times as long"
    r"|\d (?:\([^)]*\) )?of (?:\w+'s |the |its |that )*(?:processor )?time"
    r"|\d of \w+'s evaluations"
    r"|tenth of (?:the|a) (?:time|millisecond)|takes? minutes|compilation takes"
)


# --- what pages say -------------------------------------------------------------------


class Claim(NamedTuple):
    """A sentence with its figures, which evidence has."""

    page: str
    text: Callable[[], str]


def _reported() -> str:
    found = reports()
    return f"from {found.tests} tests with {whole(found.cases)} cases"


def _reported_by_optax() -> str:
    return f"Optax passes {whole(reports().optax)}"


def _packed() -> str:
    step, compiled = (ratio("small", "adamw, packed", x) for x in ("step", "compile"))
    took = seconds("small", "adamw", "compile")
    return (
        f"a step of AdamW takes {two(step)} of the time of Optax's, and its "
        f"compilation {two(compiled)} of {took:.1f} s"
    )


def _many() -> str:
    cases = ("adam", "adamw", "clip + adamw", "prodigy")
    times = [seconds("small", x, "compile", "stepax") for x in cases]
    return f"compilation takes {min(times):.0f} to {max(times):.0f} s"


def _low_bits_on_gpu() -> str:
    at = {(x["shape"], x["case"], x["library"]): x["step"] for x in stored(GPU)["rows"]}
    ends = []
    for bits in (8, 4):
        case = f"adamw, {bits} bits"
        found = [
            at[shape, case, "stepax.step"] / at[shape, "adamw", "stepax.step"]
            for shape in (*GPTS, "large")
        ]
        ends.append((two(min(found)), two(max(found))))
    (a, b), (c, d) = ends
    return f"{a} to {b} times as long with 8 bits, and {c} to {d} times with 4"


CLAIMS = (
    Claim("docs/memory.md", _low_bits_on_gpu),
    Claim("docs/user_reports.md", _reported),
    Claim("docs/user_reports.md", _reported_by_optax),
    Claim("docs/small_arrays.md", _packed),
    Claim("docs/small_arrays.md", _many),
)

# --- the check ------------------------------------------------------------------------


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """The lines of a page that a person wrote: no programs, and no written tables."""
    is_code, written = False, False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.startswith("```"):
            is_code = not is_code
        elif mark := re.match(r"<!-- (end)?.*-->$", line):
            written = not mark[1]
        elif not is_code and not written:
            yield number, line


def recorded(root: Path = ROOT) -> dict[str, list[str]]:
    """The fragments of each page that are recorded, or are no measurements."""
    found: dict[str, list[str]] = {}
    for entry in json.loads((root / RECORDED).read_text())["figures"]:
        found.setdefault(entry["page"], []).append(entry["says"])
    return found


def wrong(root: Path = ROOT) -> Iterator[str]:
    """Each figure that no evidence backs, or that is not what evidence says."""
    backed = recorded(root)
    for page, says in backed.items():
        text = (root / page).read_text()
        for fragment in says:
            if fragment not in text:
                yield f"{page}:1: does not say {fragment!r}, as {RECORDED} does"
    for claim in CLAIMS:
        said = claim.text()
        backed.setdefault(claim.page, []).append(said)
        if said not in (root / claim.page).read_text():
            yield f"{claim.page}:1: does not say {said!r}, as the evidence does"
    for (page, mark), lines in TABLES.items():
        where = mark, f"end {mark}"
        yield from wrong_lines(root / page, lines(), page, "the evidence", *where)
    if not (root / PICTURE).exists() or (root / PICTURE).read_text() != picture():
        yield f"{PICTURE}:1: not what the evidence says"
    for file in [root / README, *sorted((root / "docs").rglob("*.md"))]:
        page = file.relative_to(root).as_posix()
        for number, line in prose(file):
            if MEASURED.search(line) and not any(
                x in line for x in backed.get(page, [])
            ):
                yield f"{page}:{number}: no evidence backs {line.strip()!r}"


def main() -> None:
    for (page, mark), lines in TABLES.items():
        write_table(ROOT / page, lines(), mark, f"end {mark}")
    (ROOT / PICTURE).write_text(picture())
    found = [*wrong()]
    print("\n".join(found))
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
