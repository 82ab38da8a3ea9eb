"""Problems reported by users of Optax, as tests that run on Stepax and on Optax.

Run it with `python benchmarks/user_reports.py`; `--markdown FILE` also writes the
table.

The tests in `tests/user_reports` run twice, once on each library.  Each declares
whether Optax 0.2.8 passes it, in all cases, or fails it, in at least one.  A result of
Optax other than the declared one is an error here, and so is any failure of Stepax.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from pathlib import Path

from rich.console import Console
from rich.table import Table


ROOT = Path(__file__).parents[1]
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
        if "row" in about:
            test = str(case.get("name")).split("[")[0]
            passed = case.find("failure") is None and case.find("error") is None
            found[about["row"], test, about["optax"]].append(passed)
    return found


def share(cases):
    return f"{sum(cases)} of {len(cases)}"


def lines(ours, theirs):
    """(row, test, result on Stepax, result on Optax, what is wrong)"""
    for key in sorted(ours):
        row, test, expected = key
        passes = all(theirs[key]) and len(theirs[key]) > 0
        wrong = [] if all(ours[key]) else ["fails on Stepax"]
        if passes != (expected == "passes"):
            wrong.append(f"Optax {'passes' if passes else 'fails'}")
        yield row, test, share(ours[key]), share(theirs[key]), ", ".join(wrong)


HEADER = ["topic", "test", "Stepax", "Optax 0.2.8", "wrong"]


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-n", dest="jobs", default="2", help="number of processes")
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    parser.add_argument("more", nargs="*", help="arguments for pytest, such as -k WORD")
    args = parser.parse_args()
    ours, theirs = (run(x, args.jobs, args.more) for x in ("stepax", "optax"))
    found = list(lines(ours, theirs))
    table = Table(*HEADER)
    for line in found:
        table.add_row(*line)
    Console().print(table)
    if args.markdown:
        rows = [HEADER, ["---"] * len(HEADER), *found]
        text = "".join(f"| {' | '.join(row)} |\n" for row in rows)
        args.markdown.write_text(text)
    sys.exit(any(line[-1] for line in found))


if __name__ == "__main__":
    main()
