"""Write docs/bench.md, its evidence, its picture and docs/goals.md.

Run it with `make bench-pages`.  The files are in docs/evidence/bench, one for each
machine, as `python -m benchmarks.bench --json docs/evidence/bench/NAME.json` writes
them.  `reference.json` is that of the goals and of the picture.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.bench import command, report, results
from benchmarks.bench.goals import GOALS, got, is_met
from benchmarks.bench.picture import draw, drawn, step_ratios

from .parts import write_table, wrong_lines


ROOT = Path(__file__).parents[2]
FOLDER, PAGE, PICTURE = "docs/evidence/bench", "docs/bench.md", "docs/bench.png"
# What developers asked of a step is not for those who read what it costs.
EVIDENCE = "docs/evidence/bench.md"
PAGES = {"goals": "docs/goals.md", "results": EVIDENCE, "others": EVIDENCE}
REFERENCE = "reference"

Run = tuple[dict[str, Any], list[dict]]


def read(root: Path = ROOT) -> dict[str, Run]:
    """The surroundings and rows of each file, by name; the reference first."""
    found = {path.stem: results.read(path) for path in (root / FOLDER).glob("*.json")}
    names = sorted(found, key=lambda name: (name != REFERENCE, name))
    return {x: (found[x][0], command.ordered(found[x][1])) for x in names}


def parts(runs: dict[str, Run]) -> dict[str, list[str]]:
    """The lines of each part of the page, by its mark."""
    about, rows = runs[REFERENCE]
    others = {name: run for name, run in runs.items() if name != REFERENCE}
    return {
        "reference": _surroundings(about, rows),
        "goals": _goals(rows),
        "results": list(_results(rows, about)),
        "others": [line for run in others.items() for line in _other(*run)],
    }


def _surroundings(about, rows):
    limits = about["limits"]
    commands = ", then ".join(f"`{each}`" for each in about["commands"])
    return [
        report.in_words(about, rows),
        f"Measured by {commands}.",
        f"A ratio marked by {report.VAGUE} has an interval that was not narrower than "
        f"{100 * limits['width']:g} % after {limits['seconds']:g} seconds, or after "
        f"{limits['most']} rounds.",
    ]


def _goals_of_machine(about, rows):
    """Rows that goals are for: on a GPU those of a tree that is for GPUs alone."""
    return [x for x in rows if "copy rate" not in about or x["shape"] == "gpt1b"]


def _goals(rows):
    found = [(goal, result) for goal in GOALS if (result := got(goal, rows))]
    met = sum(is_met(*each) for each in found)
    missed = f"{met} of these {len(found)} goals are met."
    return [*report.markdown(report.goals(rows)).splitlines(), "", missed]


def _results(rows, about, level="###") -> Iterator[str]:
    for title, table in command.tables(rows, about).items():
        if title != "goals":
            yield from (f"{level} {title}", "", *report.markdown(table).splitlines())
            yield ""


def _other(name, run):
    about, rows = run
    yield from (f"### {name}", "", *_surroundings(about, rows), "")
    goals = report.goals(_goals_of_machine(about, rows))
    yield from (*report.markdown(goals).splitlines(), "")
    yield from _results(rows, about, "####")


def write(runs: dict[str, Run], root: Path = ROOT) -> None:
    for mark, lines in parts(runs).items():
        write_table(root / PAGES.get(mark, PAGE), lines, mark, f"end {mark}")
    about, rows = runs[REFERENCE]
    if is_stale(root / PICTURE, rows):
        draw(rows, command.chart_title(about), root / PICTURE)


def wrong(runs: dict[str, Run], root: Path = ROOT) -> Iterator[str]:
    """Each line that is not what the files say, with its number, and the picture."""
    for mark, lines in parts(runs).items():
        where, page = (mark, f"end {mark}"), PAGES.get(mark, PAGE)
        yield from wrong_lines(root / page, lines, page, "the files", *where)
    if is_stale(root / PICTURE, runs[REFERENCE][1]):
        yield f"{PICTURE}: not of what the files say; run `make bench-pages`"


def is_stale(picture: Path, rows: list[dict]) -> bool:
    """Whether a picture shows other ratios or goals; it carries them in a comment."""
    from PIL import Image  # which Matplotlib needs

    if not picture.exists():
        return bool(step_ratios(rows))
    with Image.open(picture) as image:
        return image.info.get("Comment") != drawn(rows)


def main() -> None:
    write(read())
    print(f"wrote {PAGE} and {PICTURE}")


if __name__ == "__main__":
    main()
