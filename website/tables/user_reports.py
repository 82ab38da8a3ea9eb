"""Problems reported by users of Optax, as tests that run on Stepax and on Optax.

Run it with `python -m website.tables.user_reports`; `--write` also writes the tables of
`docs/user_reports.md`, and the file in `docs/evidence` that they are made of.

The tests in `tests/user_reports` run twice, once on each library.  Each declares
whether Optax 0.2.8 passes it, in all cases, or fails it, in at least one.  A result of
Optax other than the declared one is an error here, and so is any failure of Stepax.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from pathlib import Path

from .parts import write_table, wrong_lines


ROOT = Path(__file__).parents[2]
PAGE, STORED = "docs/user_reports.md", "docs/evidence/user_reports.json"
ROWS = ROOT / "tests" / "user_reports"


def run(library, jobs, more):
    """Whether each case passed, by (row, test, expected result of Optax)."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", ROWS, "-q", "-n", jobs]
        command += ["--junitxml", report, "-W", "ignore", *more]
        own = {"STEPAX_REPORTS_ON": library, "STEPAX_TESTS": "all"}
        print(f"running the tests on {library}", flush=True)
        subprocess.run(
            list(map(str, command)),
            cwd=ROOT,
            env=os.environ | own,
            stdout=None if library == "stepax" else subprocess.DEVNULL,
        )
        return read(report)


def read(report):
    found = defaultdict(list)
    for case in ElementTree.parse(report).iter("testcase"):
        about = {x.get("name"): x.get("value") for x in case.iter("property")}
        if "row" in about and case.find("skipped") is not None:
            found["skipped"].append(True)
        elif "row" in about:
            test = str(case.get("name")).split("[")[0]
            passed = case.find("failure") is None and case.find("error") is None
            found[about["row"], test, about["optax"]].append(passed)
    return found


def share(cases):
    return f"{sum(cases)} of {len(cases)}"


def lines(ours, theirs):
    """(row, test, result on Stepax, result on Optax, what is wrong)"""
    for key in sorted(ours.keys() - {"skipped"}):
        row, test, expected = key
        passes = all(theirs[key]) and len(theirs[key]) > 0
        wrong = [] if all(ours[key]) else ["fails on Stepax"]
        if passes != (expected == "passes"):
            wrong.append(f"Optax {'passes' if passes else 'fails'}")
        yield row, test, share(ours[key]), share(theirs[key]), ", ".join(wrong)


HEADER = ["topic", "test", "Stepax", "Optax 0.2.8", "wrong"]
OURS = "Bugs found by us"


def stored(root: Path = ROOT) -> list[list[str]]:
    """The rows of the last run that was written."""
    return json.loads((root / STORED).read_text())["rows"]


def skipped() -> int:
    """How many cases did not apply, such as the wrong state of one without a state."""
    return json.loads((ROOT / STORED).read_text())["skipped"]


def parts(rows: list[list[str]]) -> dict[str, list[str]]:
    """The parts of the page: what users reported, and what we found."""
    lines = lambda rows: [f"| {' | '.join(row)} |" for row in rows]
    head, rule = HEADER[:4], ["---"] * 4
    reported = [row for row in rows if not row[0].startswith(OURS)]
    own = [row[1:] for row in rows if row[0].startswith(OURS)]
    return {
        "reported": lines([head, rule, *reported]),
        "own": lines([head[1:], rule[1:], *own]),
    }


def wrong(root: Path = ROOT):
    """Each line of the page that is not what the stored rows say."""
    for mark, expected in parts(stored(root)).items():
        where = mark, f"end {mark}"
        yield from wrong_lines(root / PAGE, expected, PAGE, STORED, *where)


def write(rows: list[list[str]], skipped: int) -> None:
    """Store rows and the number of skipped cases, and write rows into the page."""
    each = ",\n".join(map(json.dumps, rows))
    (ROOT / STORED).write_text(f'{{"skipped": {skipped}, "rows": [\n{each}\n]}}\n')
    for mark, expected in parts(rows).items():
        write_table(ROOT / PAGE, expected, mark, f"end {mark}")


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-n", dest="jobs", default="2", help="number of processes")
    parser.add_argument("--write", action="store_true", help="write the page")
    parser.add_argument("more", nargs="*", help="arguments for pytest, such as -k WORD")
    args = parser.parse_args()
    ours, theirs = (run(x, args.jobs, args.more) for x in ("stepax", "optax"))
    found = list(lines(ours, theirs))
    from rich.console import Console
    from rich.table import Table

    table = Table(*HEADER)
    for line in found:
        table.add_row(*line)
    Console().print(table)
    if args.write:
        write([list(line[:4]) for line in found], len(ours["skipped"]))
    sys.exit(any(line[-1] for line in found))


if __name__ == "__main__":
    main()
