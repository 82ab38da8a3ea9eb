"""How sharp `make test` is: faults are planted one at a time, and it has to find them.

    make mutants                            100 faults, in half an hour on two cores
    make mutants ARGS="--sample 15"         the first 15 of them
    make mutants ARGS="--only 3f2a1c"       some of them, by their names
    make mutants ARGS="--all --only ..."    by all cases, as `make test-all` has them
    make mutants ARGS=--list                what they are, without running anything

What they are is in `faults.py`.  Each meets the tests that execute its lines, up to a
minute and a half of them, those first that execute little else, until one fails.  Which
tests these are is recorded once, in `.cache/covering`; remove it to record again.
What is left then meets all tests together: those that fail are run on each fault alone.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

import pytest

from benchmarks.covering import CASES, Covering
from benchmarks.faults import ROOT, Fault, chosen


RECORD = ".cache/covering"
SECONDS = 90  # of tests that execute a fault, before all tests run
LIMIT = 1800  # seconds of a run of tests, as a fault may have made a loop endless

# Faults that change nothing that can be observed, and why.
EQUIVALENT: dict[str, str] = {
    "006493": "the parent of a folder exists, as it holds the files that are listed",
    "009ffe": "names of dtypes are ASCII, whose bytes have the same bits signed or not",
    "00f276": "an array without elements has none of the key from which it is split",
    "02ede7": "the axis has length 1, and JAX takes the last element for those beyond",
    "03446a": "on a CPU it copies what is in pinned memory, where a view would do",
    "05234c": "on a CPU all arrays are in one kind of memory, or are read alike",
    "05666b": "each array of a row is a stack of as many matrices",
    "0a571f": "what fills up the places is cut off",
    "1491fa": "the parameter is a bfloat16, and is subtracted from a float32",
    "3fbca9": "a bfloat16 stays one, and a float32 is subtracted from it",
    "436ed4": "a boolean is 0 or 1 in either",
    "449d07": "bytes are compared, and are stored with the same bits signed or not",
    "5a75e5": "four bits are a number of 0 to 15 in either",
    "60a22e": "bytes are stored with the same bits signed or not",
    "879324": "bytes are written with the same bits signed or not",
    "914dd9": "text is sent with the same bits signed or not",
}


def copy_of_the_tree(to: Path) -> Path:
    """What git knows of, in another folder."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.check_output(listed, cwd=ROOT, text=True).split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    return to


def run_tests(
    tree: Path, which: str, *args: str, only: Iterable[str] = ()
) -> list[str]:
    """The tests that fail."""
    own = {
        "STEPAX_TESTS": which,
        "PYTHONPATH": str(tree),
        "JAX_COMPILATION_CACHE_DIR": str(tree.parent / "jax"),
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.covering", *args, "-q", "--tb=no"],
            cwd=tree, env=os.environ | own, timeout=LIMIT, text=True,
            input="\n".join(only), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return ["a test that did not end"]
    if done.returncode in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return []
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", done.stdout, re.MULTILINE)
    return failed or done.stdout.strip().splitlines()[-1:]


def record(tree: Path) -> Covering:
    """Which tests execute which lines, as of the first run that asked for it."""
    folder = ROOT / RECORD
    if not folder.exists():
        print(f"recording which tests execute which lines, in {RECORD}", flush=True)
        made = tree.parent / "record"
        made.mkdir()
        failed = run_tests(tree, "", "--record", str(made), "-n", "0", "tests")
        if not (made / CASES).exists():
            sys.exit(f"the tests do not run: {failed}")
        shutil.copytree(made, folder)
    return Covering(folder)


@contextmanager
def planted(faults: Iterable[Fault], tree: Path) -> Iterator[None]:
    try:
        for fault in sorted(faults, key=lambda x: x.place, reverse=True):
            source = (tree / fault.path).read_bytes()
            start, end = fault.place
            source = source[:start] + fault.new.encode() + source[end:]
            (tree / fault.path).write_bytes(source)
        yield
    finally:
        for fault in faults:
            shutil.copy2(ROOT / fault.path, tree / fault.path)


def killer(fault: Fault, tree: Path, which: str, tests: list[str]) -> str:
    """The first of these tests that finds a fault, or nothing."""
    if which == "all":  # all cases of these functions
        tests = [x.partition("[")[0] for x in tests]
    files = [x for x in files_of(tests) if (tree / x).exists()] or ["tests"]
    with planted([fault], tree):
        failed = run_tests(tree, which, "-x", "-n", "0", *files, only=tests)
    return next(iter(failed), "")


def files_of(tests: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(x.partition("::")[0] for x in tests))


def apart(faults: Iterable[Fault]) -> list[Fault]:
    """Those that can be planted together."""
    taken: list[Fault] = []
    for x in faults:
        if not any(
            x.path == y.path and x.place[0] < y.place[1] and y.place[0] < x.place[1]
            for y in taken
        ):
            taken.append(x)
    return taken


def late_killers(
    faults: list[Fault], tree: Path, which: str, jobs: int
) -> Iterator[tuple[Fault, str]]:
    """By all tests: each fault that one of them finds, and which.

    The faults are planted together, as each has passed the tests that execute it.  The
    tests that fail then, and do not without any fault, are run on each fault alone,
    until none finds another one.
    """
    while faults:
        together = apart(faults)
        with planted(together, tree):
            failed = run_tests(tree, which, "-n", str(jobs), "tests")
        failed = [x for x in failed if x.startswith("tests/")]
        if failed:
            anyway = run_tests(tree, which, "-n", "0", *files_of(failed), only=failed)
            failed = [x for x in failed if x not in anyway]
        found = {x: killer(x, tree, which, failed) for x in together if failed}
        yield from ((x, test) for x, test in found.items() if test)
        done = [x for x in together if found.get(x)] or together
        faults = [x for x in faults if x not in done]


def main() -> None:
    args = parsed()
    faults = chosen(args.faults)
    if args.only:
        faults = [x for x in faults if x.name in args.only.split(",")]
    faults = faults[: args.sample]
    if args.list:
        print(*faults, sep="\n")
        return
    with tempfile.TemporaryDirectory() as folder:
        killers = judged(faults, Path(folder), args.jobs, "all" if args.all else "")
    report(faults, killers)


def judged(
    faults: list[Fault], folder: Path, jobs: int, which: str
) -> dict[Fault, str]:
    """The faults that are found, each with a test that finds it."""
    trees: SimpleQueue[Path] = SimpleQueue()
    for i in range(jobs):
        trees.put(copy_of_the_tree(folder / str(i)))
    covering = record(folder / "0")

    def judge(fault: Fault) -> str:
        tree, started = trees.get(), time.monotonic()
        tests = covering.tests(fault.path, *fault.lines, SECONDS)
        test = killer(fault, tree, which, tests) if tests else ""
        trees.put(tree)
        verdict = f"killed by {test}" if test else f"passed {len(tests)} tests"
        print(f"{fault}\n  {time.monotonic() - started:.0f} s  {verdict}", flush=True)
        return test

    with ThreadPoolExecutor(jobs) as pool:
        killers = dict(zip(faults, pool.map(judge, faults), strict=True))
    left = [x for x in faults if not killers[x]]
    print(f"\nall tests on the {len(left)} faults that are left", flush=True)
    for fault, test in late_killers(left, folder / "0", which, jobs):
        print(f"{fault}\n  killed by {test}", flush=True)
        killers[fault] = test
    return {x: test for x, test in killers.items() if test}


def report(faults: list[Fault], killers: dict[Fault, str]) -> None:
    left = [x for x in faults if x not in killers]
    for fault in (x for x in left if x.name in EQUIVALENT):
        print(f"{fault}\n  equivalent: {EQUIVALENT[fault.name]}")
    survivors = [x for x in left if x.name not in EQUIVALENT]
    counted = len(killers) + len(survivors)
    print(f"\n{len(killers)} of {counted} faults were found", end="")
    print("; these were not:" if survivors else "")
    print(*survivors, sep="\n")
    if survivors:
        names = ",".join(x.name for x in survivors)
        print(f'by all cases: make mutants ARGS="--all --only {names}"')
    sys.exit(len(killers) < 0.95 * counted)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--faults", type=int, default=100, help="how many to choose")
    parser.add_argument("--sample", type=int, help="the first so many of them")
    parser.add_argument("--only", help="their names, with commas between")
    parser.add_argument("--all", action="store_true", help="run all cases of all tests")
    parser.add_argument(
        "--list", action="store_true", help="print them, and run nothing"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    return parser.parse_args()


if __name__ == "__main__":
    main()
