"""Runs projects that build optimizers from configuration, twice each, and compares.

A project's file says what `project.py` asks for.  `python -m benchmarks.downstream`
fetches each at its commit, installs what it needs in an environment of its own, runs
`child.py` there with Optax and with Stepax in its place, keeps what it found in
`docs/evidence/downstream.json`, and writes the table in `docs/evidence/projects.md`.
"""

import importlib
import json
import os
import pkgutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from . import projects
from .project import Project


ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "downstream"
EVIDENCE = ROOT / "docs" / "evidence" / "downstream.json"
NAMES = sorted(x.name for x in pkgutil.iter_modules(projects.__path__))
WAYS = {"Optax": (), "Stepax": ("-m", "stepax.interop.optax")}
BASE = ("jax==0.10.2", "optax==0.2.8", "numpy", "pytest", "absl-py")
BOUND = 1e-5  # the largest relative difference that needs no explanation


def project(name: str) -> Project:
    return importlib.import_module(f"{projects.__name__}.{name}").PROJECT


def complete(folder: Path, make: Callable[[Path], object]) -> Path:
    """`folder`; if it is not there, `make(new)` makes all of it under another name."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as home:
            new = Path(home, folder.name)
            make(new)
            new.rename(folder)
    return folder


def sources(name: str) -> Path:
    """The project at its commit."""
    row = project(name)

    def make(new: Path) -> None:
        git = ["git", "-C", str(new)]
        new.mkdir()
        subprocess.run([*git, "init", "--quiet"], check=True)
        fetch = [*git, "fetch", "--quiet", "--depth=1", row.address, row.commit]
        subprocess.run(fetch, check=True)
        subprocess.run([*git, "checkout", "--quiet", "FETCH_HEAD"], check=True)

    return complete(CACHE / f"{name}-{row.commit[:7]}", make)


def environment(name: str) -> Path:
    """Python, with the packages that the project needs."""

    def make(new: Path) -> None:
        chosen = project(name).python or sys.executable
        uv, python = str(Path(sys.executable).with_name("uv")), str(new / "bin/python")
        made = [uv, "venv", "--quiet", "--relocatable", "--python", chosen, str(new)]
        subprocess.run(made, check=True)
        wanted = [*BASE, *project(name).packages.split()]
        install = [uv, "pip", "install", "--quiet", "--python", python, *wanted]
        subprocess.run(install, check=True)

    return complete(CACHE / f"{name}-environment", make) / "bin" / "python"


class Runs:
    """The runs of one project.

    home: where its sources are.
    python: what it runs in.
    """

    def __init__(self, name: str, home: Path | None, python: Path | None):
        self.name, self.row = name, project(name)
        self.home = home / name if home else sources(name)
        self.python = python or environment(name)

    def child(self, way: tuple[str, ...], what: str) -> str:
        """What the process wrote; nothing if it ended before."""
        paths = [str(ROOT), str((self.home / self.row.path).absolute())]
        settings = {"PYTHONPATH": os.pathsep.join(paths), "JAX_PLATFORMS": "cpu"}
        # A project may have a package named `benchmarks`, too.
        settings |= {"PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "found")
            program = ["-m", f"{__package__}.child", what, self.name, str(file)]
            command = [str(self.python), *way, *program]
            subprocess.run(
                command,
                cwd=self.home,
                env=os.environ | settings,
                stdout=sys.stderr,
                timeout=3600,
            )
            return file.read_text() if file.exists() else ""

    def found(self) -> dict[str, Any]:
        """What the page tells of the project."""
        told = {"repository": self.row.repository, "commit": self.row.commit}
        ways = {k: self.trained(way) for k, way in WAYS.items()}
        told["configurations"] = len(ways["Optax"])
        built = {
            k: [n for n, x in v.items() if "error" not in x] for k, v in ways.items()
        }
        told["built"] = {k: len(x) for k, x in built.items()}
        told["errors"] = {k: erred(x) for k, x in ways.items()}
        told["missing"] = sorted({*built["Optax"]} - {*built["Stepax"]})
        told["differences"] = differences(ways["Optax"], ways["Stepax"])
        if self.row.tests:
            told |= compared({k: self.tests(way) for k, way in WAYS.items()})
        return told

    def trained(self, way: tuple[str, ...]) -> dict[str, dict]:
        return json.loads(self.child(way, "train") or "{}")

    def tests(self, way: tuple[str, ...]) -> dict[str, str]:
        return outcomes(self.child(way, "tests"))


def erred(found: dict[str, dict]) -> dict[str, str]:
    return {k: x["error"] for k, x in found.items() if "error" in x}


def differences(theirs: dict[str, dict], ours: dict[str, dict]) -> dict[str, float]:
    """The largest relative difference of each that both built."""
    both = [k for k in theirs if not {"error"} & {*theirs[k], *ours.get(k, ["error"])}]
    return {k: float(f"{apart(theirs[k], ours[k]):.1e}") for k in both}


def apart(a: dict[str, list], b: dict[str, list]) -> float:
    """The largest difference in an array, relative to its largest element."""
    if a.keys() != b.keys():
        return float("inf")
    return max((far(np.array(a[k]), np.array(b[k])) for k in a), default=0.0)


def far(a: np.ndarray, b: np.ndarray) -> float:
    if a.shape != b.shape or not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return float("inf")
    a, b = a[np.isfinite(a)], b[np.isfinite(b)]
    size = np.abs(a).max(initial=0.0)
    return float(np.abs(a - b).max(initial=0.0) / size) if size else np.abs(b).sum()


def outcomes(report: str) -> dict[str, str]:
    """How each test of a report of pytest ended."""
    cases = ElementTree.fromstring(report or "<none/>").iter("testcase")
    return {f"{x.get('classname')}.{x.get('name')}": ended(x) for x in cases}


def ended(case: ElementTree.Element) -> str:
    kinds = {x.tag for x in case}
    is_bad = kinds & {"failure", "error"}
    return "failed" if is_bad else "skipped" if "skipped" in kinds else "passed"


def compared(tests: dict[str, dict[str, str]]) -> dict[str, Any]:
    """How many tests passed, and which with Optax alone."""
    passed = {k: {x for x in v if v[x] == "passed"} for k, v in tests.items()}
    return {
        "tests": sum(x != "skipped" for x in tests["Optax"].values()),
        "passed": {k: len(x) for k, x in passed.items()},
        "lost": sorted(passed["Optax"] - passed["Stepax"]),
    }


def wrong(name: str, found: dict[str, Any]) -> list[str]:
    """What passes with Optax alone, or differs without an explanation."""
    explained = project(name).explained
    lost = [f"builds with Optax alone: {k}" for k in found["missing"]]
    lost += ["no test ran with Optax"] * (found.get("tests") == 0)
    tests = [x for x in found.get("lost", ()) if x.rpartition(".")[2] not in explained]
    lost += [f"passes with Optax alone: {x}" for x in tests]
    far = {k: x for k, x in found["differences"].items() if x > BOUND}
    return lost + [f"differs by {x}: {k}" for k, x in far.items() if k not in explained]


def keep(name: str, found: dict[str, Any]) -> None:
    """Put it beside what other projects found."""
    kept = json.loads(EVIDENCE.read_text()) if EVIDENCE.exists() else {}
    kept = dict(sorted((kept | {name: found}).items()))
    EVIDENCE.write_text(json.dumps(kept, indent=1) + "\n")


def run(names: Iterable[str], home: Path | None, python: Path | None) -> list[str]:
    """Run these projects; what is wrong."""
    bad = []
    for name in names:
        found = Runs(name, home, python).found()
        keep(name, found)
        print(line(name, found), flush=True)
        bad += [f"{name}: {x}" for x in wrong(name, found)]
    return bad


# --- the page -------------------------------------------------------------------------


HEAD = (
    "| project | commit | what ran | with Optax | with Stepax | largest difference |\n"
    "| --- | --- | --- | --- | --- | --- |"
)


def line(name: str, found: dict[str, Any]) -> str:
    """A row of the table."""
    address = f"{project(name).address}/tree/{found['commit']}"
    ran = [f"{found['configurations']} built"]
    counts = {k: [str(x)] for k, x in found["built"].items()}
    if "tests" in found:
        ran.append(f"{found['tests']} tests")
        counts = {k: [*x, str(found["passed"][k])] for k, x in counts.items()}
    told = [", ".join(ran), *(", ".join(x) for x in counts.values())]
    largest = max(found["differences"].values(), default=0.0)
    cells = [
        f"[{name}]({address})",
        f"`{found['commit'][:7]}`",
        *told,
        f"{largest:.0e}",
    ]
    return f"| {' | '.join(cells)} |"


def table() -> str:
    """All projects, and below them what is patched and explained."""
    kept = json.loads(EVIDENCE.read_text())
    lines = [line(k, x) for k, x in kept.items()]
    notes = [f"- {k}: {x}" for k in kept for x in told(k)]
    return "\n".join([HEAD, *lines, "", *notes, ""])


def told(name: str) -> list[str]:
    row = project(name)
    stubs = [f"not installed: {', '.join(f'`{x}`' for x in row.stubs)}"] * bool(
        row.stubs
    )
    reasons = {}
    for k, x in row.explained.items():
        reasons.setdefault(x, []).append(f"`{k}`")
    return [*row.patched, *stubs, *(f"{x}: {', '.join(k)}" for x, k in reasons.items())]
