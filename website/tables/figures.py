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
from functools import cache
from pathlib import Path
from typing import NamedTuple

from benchmarks.bench.cases import GPTS

from . import user_reports
from .parts import write_table, wrong_lines


ROOT = Path(__file__).parents[2]
README = "README.md"
RECORDED = "docs/evidence/figures.json"
BENCH = "docs/evidence/bench/reference.json"
GPU = "docs/evidence/bench/h100.json"
PICTURE = "docs/assets/speed.svg"

# Sentences with a measured figure: a time, a rate, or a ratio of times or evaluations.
MEASURED = re.compile(
    r"\d ?(?:ms|µs|ns|TB/s)\b|\d(?: to [\d.]+)? s\b|\d seconds of\b|\d times as long"
    r"|\d (?:\([^)]*\) )?of (?:\w+'s |the |its |that )*(?:processor )?time"
    r"|\d of \w+'s evaluations"
    r"|tenth of (?:the|a) (?:time|millisecond)|takes? minutes|compilation takes"
)


# --- evidence -------------------------------------------------------------------------


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


# --- what pages say -------------------------------------------------------------------


class Claim(NamedTuple):
    """A sentence with its figures, which evidence has."""

    page: str
    text: Callable[[], str]


def two(x: float) -> str:
    return f"{x:.2f}"


def whole(x: float) -> str:
    return f"{x:,}"


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

# What a bar of the picture is called, its shape and case in the run on a CPU, and the
# shapes on a GPU, all if there are none.
BARS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("clip + AdamW", "large", "clip + adamw", ()),
    ("LAMB", "large", "lamb", ()),
    ("Adafactor", "large", "adafactor", ()),
    ("Muon", "vit", "muon", ()),
    ("AdamW in MultiSteps", "large", "multi_steps(adamw, 4)", ()),
    ("AdamW, 600 arrays, packed", "small", "adamw, packed", ("small",)),
)


def machine() -> str:
    """The machine of the reference run."""
    return f"{stored(BENCH)['about']['machine']['cores']} CPU cores"


def switch() -> list[str]:
    """The table of reasons to switch, in README.md."""
    found, (runs, error) = reports(), replayed()
    (ours, ms), (theirs, their_ms) = map(muon_on_a_mesh, ("stacked", "Optax"))
    gathers = theirs.partition(",")[0]
    rows = [
        (
            "[problems that users of Optax reported](docs/user_reports.md), as "
            f"{whole(found.cases)} test cases",
            f"passes {whole(found.optax)}",
            f"passes all; {user_reports.skipped()} more do not apply, such as the "
            "wrong state of an optimizer without one"
            if found.stepax == found.cases
            else "fails some",
            "test_reported_problems",
        ),
        (
            "a gradient of the wrong shape",
            "may be broadcast",
            "[an error that names the parameter](docs/faq.md#shapes-differ)",
            "test_wrong_shape",
        ),
        (
            "one NaN, with `zero_nans` inside `MultiSteps`",
            "that element never trains again",
            "[that element skips one update]"
            "(docs/accumulation.md#when-a-gradient-is-nan)",
            "test_nan_in_accumulation",
        ),
        (
            "Adam on bfloat16 parameters, after 1,000 noisy steps",
            "updates are off by 13 %, as each operation rounds",
            "[2.9 %, as each step rounds once](docs/precision.md); 0.42 % with "
            '`with_state_dtypes(tx, {"nu": "float32"})`, which `diagnose` suggests',
            "test_bfloat16",
        ),
        (
            "which parameters decay, freeze or get Muon",
            "a tree of labels, or a function",
            '[patterns of paths](docs/masks.md): `{"bias": False, "**": True}`',
            "test_patterns",
        ),
        (
            "models that scan over layers",
            "one norm and one trust ratio for all layers",
            "[each layer its own](docs/stacked.md), with any optimizer: "
            '`stacked(tx, {"layers/**": 0})`',
            "test_layers",
        ),
        (
            "the authors' own code, replayed",
            "not replayed",
            f"[{runs} runs](docs/references.md), to within {error:.0e} in float64",
            "test_authors_code",
        ),
        (
            "Muon on 16 sharded matrices, 8 virtual devices",
            f"{their_ms} ms, {gathers}",
            f"[{ms} ms, {ours}](docs/distributed_matrices.md#muon)",
            "test_muon_on_a_mesh",
        ),
        (
            "minimizers: of 109 test functions, float64",
            f"{solved('optax').partition(' ')[0]} solved",
            f"[{solved('stepax').partition(' ')[0]} solved](docs/minimize-benchmark.md)"
            f" (SciPy {solved('scipy').partition(' ')[0]})",
            "test_minimizers",
        ),
    ]
    head = ["| | Optax 0.2.8 | Stepax | test |", "| --- | --- | --- | --- |"]
    return [*head, *(f"| {' | '.join(row[:-1])} | `{row[-1]}` |" for row in rows)]


def short() -> list[str]:
    """The summary of docs/bench.md: what a reader should know in ten lines."""
    times = lambda names, shape="large", way="stepax": ", ".join(
        f"{name} {two(ratio(shape, case, way=way))}" for name, case in names.items()
    )
    faster = {
        "clip + AdamW": "clip + adamw",
        "LAMB": "lamb",
        "Adafactor": "adafactor",
        "MultiSteps": "multi_steps(adamw, 4)",
    }
    fused = {"Lion": "lion", "MultiSteps": "multi_steps(adamw, 4)"}
    small = {"AdamW": "adamw", "clip + AdamW": "clip + adamw"}
    return [
        f"- Times of a step on {machine()}, as ratios to Optax's:",
        f"    - as fast: {times({'AdamW': 'adamw', 'Adam': 'adam'})}",
        f"    - faster: {times(faster)}, Muon {two(ratio('vit', 'muon'))}",
        f"    - fused, by `stepax.step`: {times(fused, way='stepax.step')}",
        f"    - 600 small arrays: {times(small, 'small')}; packed, AdamW "
        f"{two(ratio('small', 'adamw, packed'))}",
        f"- On {gpu()}: AdamW {on_gpu('adamw')}, clip + AdamW "
        f"{on_gpu('clip + adamw')}, LAMB {on_gpu('lamb')}, Adafactor "
        f"{on_gpu('adafactor')}, Muon {on_gpu('muon')}; fused, MultiSteps "
        f"{on_gpu('multi_steps(adamw, 4)', way='stepax.step')}",
        "- PyTorch's fused AdamW on the same cores: Stepax takes "
        f"{two(versus_torch('adamw'))} of its time, with clipping "
        f"{two(versus_torch('clip + adamw'))}",
    ]


def versus_torch(case: str) -> float:
    """A ratio to PyTorch's fused step in the reference run."""
    found = [
        x["ratios"]["torch fused"]["step"][0]
        for x in stored(BENCH)["rows"]
        if (x["shape"], x["case"], x["library"]) == ("large", case, "stepax")
    ]
    return found[0]


def board() -> list[str]:
    """The summary of docs/leaderboard.md."""
    text = (ROOT / "docs/leaderboard.md").read_text()
    table = text.partition("<!-- over -->")[2].partition("<!-- end -->")[0]
    rows = [
        [x.strip() for x in row.strip("|").split("|")]
        for row in table.splitlines()
        if row.startswith("| `")
    ]
    say = lambda row: (
        f"- {row[0]}: median loss {row[1]} of tuned AdamW's; better on {row[2]} tasks, "
        f"worse on {row[3]}"
    )
    better = [say(row) for row in rows[:5]]
    worst = [say(row) for row in rows if row[2] and int(row[3]) > int(row[2])]
    return [
        "Lowest losses:",
        "",
        *better,
        "",
        "More often worse than better:",
        "",
        *worst,
    ]


TABLES: dict[tuple[str, str], Callable[[], list[str]]] = {
    (README, "switch"): switch,
    ("docs/bench.md", "short"): short,
    ("docs/leaderboard.md", "short"): board,
}


def picture() -> str:
    """Six bars for a CPU, and beside each what a GPU took, as SVG."""
    left, top, unit, height = 204, 44, 290, 26
    width, bottom = 640, top + height * len(BARS)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bottom + 34}" '
        'font-family="system-ui, sans-serif" font-size="13" fill="#808080">',
        f"<title>Time of a step relative to Optax, on {machine()}</title>",
        f'<text x="{left}" y="18" font-weight="bold">time of a step on {machine()}, '
        "Optax = 1</text>",
        f'<text x="{width}" y="18" text-anchor="end">{gpu()}</text>',
    ]
    for i, (name, shape, case, shapes) in enumerate(BARS):
        y, x = top + height * i, ratio(shape, case)
        lines += [
            f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{name}</text>',
            f'<rect x="{left}" y="{y + 2}" width="{x * unit:.0f}" height="16" rx="2" '
            'fill="#5b6ee1"/>',
            f'<text x="{left + x * unit + 6:.0f}" y="{y + 14}">{two(x)}</text>',
            f'<text x="{width}" y="{y + 14}" text-anchor="end">'
            f"{on_gpu(case, shapes)}</text>",
        ]
    lines += [
        f'<path d="M{left + unit} {top - 4}V{bottom}" stroke="#808080" '
        'stroke-dasharray="3 3"/>',
        f'<text x="{left + unit}" y="{bottom + 16}" text-anchor="middle">Optax</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


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
