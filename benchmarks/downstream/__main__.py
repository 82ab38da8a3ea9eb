"""`make downstream`: the tests of other libraries, with Optax and with Stepax.

`python -m benchmarks.downstream` downloads the sources of those whose wheels leave out
their tests, runs the tests that use Optax twice, once with `import optax` redirected to
Stepax, and writes the table in `docs/interop.md`.
"""

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ElementTree
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple


ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "downstream"
PAGE = ROOT / "docs" / "interop.md"
START, END = "<!-- downstream -->\n", "<!-- end downstream -->"


class Library(NamedTuple):
    """A library that uses Optax.

    tests: its own tests that do, as paths in its sources or in what is installed.
    is_installed: whether the installed package has them.
    """

    name: str
    tests: tuple[str, ...] = ()
    is_installed: bool = False


LIBRARIES = (
    Library("brax", ("training/agents/bc/train_test.py",), is_installed=True),
    Library("equinox"),
    Library(
        "flax",
        (
            "tests/cursor_test.py",
            "tests/nnx/ema_test.py",
            "tests/nnx/helpers_test.py",
            "tests/nnx/integration_test.py",
            "tests/nnx/optimizer_test.py",
            "tests/serialization_test.py",
            "tests/traverse_util_test.py",
        ),
    ),
    Library("keras"),
    Library("numpyro", ("test/test_optimizers.py",)),
    Library("optimistix"),
)

WAYS = {"Optax": (), "Stepax": ("-m", "stepax.interop.optax")}


def sources(name: str) -> Path:
    """The unpacked sources of the installed version."""
    folder = CACHE / f"{name}-{version(name)}"
    if not folder.exists():
        wanted = f"{name}=={version(name)}"
        fetch = ["download", "--no-deps", "--no-binary", ":all:", "--dest", CACHE]
        pip = [sys.executable, "-m", "pip", *map(str, fetch), wanted]
        subprocess.run(pip, check=True, stdout=sys.stderr)
        with tarfile.open(CACHE / f"{folder.name}.tar.gz") as found:
            found.extractall(CACHE, filter="data")
    return folder


def suites(library: Library) -> dict[str, list[str]]:
    """What pytest runs for a library, by kind."""
    smoke = Path(__file__).with_name("smoke.py")
    found = {"a program": [f"{smoke}::test_{library.name}"]}
    if library.tests:
        spec = find_spec(library.name)
        home = Path(spec.origin).parent if spec and spec.origin else ROOT
        base = home if library.is_installed else sources(library.name)
        found["own tests"] = [str(base / x) for x in library.tests]
    return found


def outcomes(way: tuple[str, ...], tests: list[str]) -> dict[str, str]:
    """How each test ended."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        # Their own settings, and not ours.
        options = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        options += ["-c", os.devnull, "--rootdir", str(Path(tests[0]).parent)]
        command = [sys.executable, *way, "-m", "pytest", *options, *tests]
        settings = os.environ | {"PYTHONPATH": str(ROOT), "KERAS_BACKEND": "jax"}
        subprocess.run(command, cwd=folder, env=settings, stdout=sys.stderr)
        cases = ElementTree.parse(report).iter("testcase")
        return {f"{x.get('classname')}.{x.get('name')}": ended(x) for x in cases}


def ended(case: ElementTree.Element) -> str:
    kinds = {x.tag for x in case}
    is_bad = kinds & {"failure", "error"}
    return "failed" if is_bad else "skipped" if "skipped" in kinds else "passed"


def row(library: Library, kind: str, tests: list[str]) -> tuple[str, list[str]]:
    """A row of the table, and the tests that pass with Optax alone."""
    found = {name: outcomes(way, tests) for name, way in WAYS.items()}
    passed = {k: {x for x, y in v.items() if y == "passed"} for k, v in found.items()}
    ran = sum(x != "skipped" for x in found["Optax"].values())
    counts = " | ".join(str(len(x)) for x in passed.values())
    told = f"| {library.name} {version(library.name)} | {kind} | {ran} | {counts} |"
    return told, sorted(passed["Optax"] - passed["Stepax"])


def main(args: list[str]) -> int:
    """Run them; 1 if a test passes with Optax and not with Stepax."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", help="run the tests of one, and write nothing")
    only = parser.parse_args(args).library
    lines, lost = [], []
    for library in LIBRARIES:
        for kind, tests in suites(library).items():
            if only in (None, library.name):
                line, missing = row(library, kind, tests)
                lines, lost = [*lines, line], [*lost, *missing]
                print(line, flush=True)
    print(*(f"passes with Optax alone: {x}" for x in lost), sep="\n")
    if only is None:
        head = ["| | what | run | passed with Optax | passed with Stepax |"]
        write("\n".join([*head, "| --- | --- | --- | --- | --- |", *lines, ""]))
    return 1 if lost else 0


def write(table: str) -> None:
    """Put the table into the page."""
    before, _, rest = PAGE.read_text().partition(START)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{START}{table}{END}{after}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
