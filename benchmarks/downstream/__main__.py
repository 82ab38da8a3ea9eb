"""`make downstream`: other libraries and projects, with Optax and with Stepax.

`python -m benchmarks.downstream` runs two kinds twice, once with `import optax`
redirected to Stepax, and writes the tables of `PAGES`: the tests of libraries
that take an optimizer, of which it downloads the sources if their wheels leave them
out; and projects that build optimizers (`harness.py`).
"""

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from . import harness
from .harness import CACHE, ROOT, WAYS


PAGES = {"downstream": "docs/interop.md", "projects": "docs/evidence/projects.md"}


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


def sources(name: str) -> Path:
    """The unpacked sources of the installed version."""
    folder = CACHE / f"{name}-{version(name)}"

    def make(new: Path) -> None:
        wanted = f"{name}=={version(name)}"
        fetch = ["download", "--no-deps", "--no-binary", ":all:", "--dest", new.parent]
        pip = [sys.executable, "-m", "pip", *map(str, fetch), wanted]
        subprocess.run(pip, check=True, stdout=sys.stderr)
        with tarfile.open(f"{new}.tar.gz") as found:
            found.extractall(new.parent, filter="data")

    return harness.complete(folder, make)


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
        return harness.outcomes(report.read_text())


def row(library: Library, kind: str, tests: list[str]) -> tuple[str, list[str]]:
    """A row of the table, and the tests that pass with Optax alone."""
    found = {name: outcomes(way, tests) for name, way in WAYS.items()}
    passed = {k: {x for x, y in v.items() if y == "passed"} for k, v in found.items()}
    ran = sum(x != "skipped" for x in found["Optax"].values())
    counts = " | ".join(str(len(x)) for x in passed.values())
    told = f"| {library.name} {version(library.name)} | {kind} | {ran} | {counts} |"
    return told, sorted(passed["Optax"] - passed["Stepax"])


def main(args: list[str]) -> int:
    """Run them; 1 if something passes with Optax and not with Stepax."""
    given = parser().parse_args(args)
    lines, lost = [], []
    for library in [x for x in LIBRARIES if given.library in (None, x.name)]:
        for kind, tests in suites(library).items():
            line, missing = row(library, kind, tests)
            lines, lost = [*lines, line], [*lost, *missing]
            print(line, flush=True)
    chosen = [x for x in harness.NAMES if given.library in (None, x)]
    lost += harness.run(chosen, given.sources, given.python)
    print(*(f"passes with Optax alone: {x}" for x in lost), sep="\n")
    if given.library is None:
        head = ["| | what | run | passed with Optax | passed with Stepax |"]
        table = [*head, "| --- | --- | --- | --- | --- |", *lines, ""]
        write("downstream", "\n".join(table))
    write("projects", harness.table())
    return 1 if lost else 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--library", help="run one library or project")
    made.add_argument("--sources", type=Path, help="folder that has projects by name")
    made.add_argument("--python", type=Path, help="with what the projects need")
    return made


def write(name: str, table: str) -> None:
    """Put the table into its page."""
    start, end = f"<!-- {name} -->\n", f"<!-- end {name} -->"
    page = ROOT / PAGES[name]
    before, _, rest = page.read_text().partition(start)
    after = rest.partition(end)[2]
    page.write_text(f"{before}{start}{table}{end}{after}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
