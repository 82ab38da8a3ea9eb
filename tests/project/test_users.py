"""Type checkers read users' files, in an environment with Optax and in one without.

Each file of `users` is a program that runs, by users of another library or of both; the
same file with Optax in place of Stepax says what a checker finds anyway.
"""

import json
import os
import re
import runpy
import subprocess
import sys
import venv
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest
from pages import ROOT


FILES = {x.stem: x for x in sorted((Path(__file__).parent / "users").glob("*.py"))}
SITE = Path(pytest.__file__).parents[1]
WRONG = {
    "called_by_mistake": "tx = stepax.adam(1e-3)(0.1)",
    "misspelt": "tx = stepax.adamw(1e-3, beta1=0.9)",
    "not_called": "import optax\ntx: optax.GradientTransformation = stepax.adamw",
    "no_transformation": "tx = stepax.chain(stepax.clip(1.0), 3)",
}
needs_optax = {"called_by_mistake", "not_called"}  # without it the base is `Any`


class Place(NamedTuple):
    folder: Path
    python: Path
    has_optax: bool


def environment(folder: Path, leave_out: str) -> Path:
    """A Python with the packages of this one, but for one, and Stepax as installed."""
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    for x in SITE.iterdir():
        if x.suffix != ".pth" and x.name not in (leave_out, "stepax", "__pycache__"):
            (site / x.name).symlink_to(x)
    (site / "stepax").symlink_to(ROOT / "stepax")
    return folder / "bin/python"


@pytest.fixture(scope="module", params=["with Optax", "without Optax"])
def place(request, tmp_path_factory) -> Place:
    folder = tmp_path_factory.mktemp("users")
    has_optax = request.param == "with Optax"
    python = environment(folder / "env", leave_out="" if has_optax else "optax")
    for name, file in FILES.items():
        own = file.read_text()
        (folder / f"{name}.py").write_text(own)
        theirs = own.replace("\nimport stepax\n", "\nimport optax as stepax\n")
        (folder / f"{name}_of_optax.py").write_text(theirs)
    for name, line in WRONG.items():
        (folder / f"{name}.py").write_text(f"import stepax\n{line}\n")
    return Place(folder, python, has_optax)


class Found(NamedTuple):
    file: str
    line: int
    message: str


def run(place: Place, *command: str) -> subprocess.CompletedProcess:
    pytest.importorskip(command[0])
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=place.folder,
        capture_output=True,
        text=True,
        # Not our own `stepax`, but the one that is installed there.
        env={k: x for k, x in os.environ.items() if k != "PYTHONPATH"},
    )


def pyright(place: Place) -> list[Found]:
    config = {"typeCheckingMode": "standard", "exclude": ["env"]}
    (place.folder / "pyrightconfig.json").write_text(json.dumps(config))
    done = run(place, "pyright", "--outputjson", "--pythonpath", str(place.python))
    said = json.loads(done.stdout)
    assert said["summary"]["filesAnalyzed"] == 2 * len(FILES) + len(WRONG), done.stderr
    return [
        Found(Path(x["file"]).stem, x["range"]["start"]["line"], x["message"])
        for x in said["generalDiagnostics"]
    ]


def mypy(place: Place, *options: str) -> list[Found]:
    options += "--cache-dir", ".mypy", "--python-executable", str(place.python)
    files = [x.name for x in place.folder.glob("*.py")]
    assert len(files) == 2 * len(FILES) + len(WRONG)
    done = run(place, "mypy", *options, *files)
    assert done.returncode < 2, done.stderr + done.stdout
    pattern = re.compile(r"^(\w+)\.py:(\d+): error: (.*)", re.MULTILINE)
    return [Found(f, int(line), said) for f, line, said in pattern.findall(done.stdout)]


def mypy_that_reads_optax(place: Place) -> list[Found]:
    # Optax has no `py.typed`: mypy takes all that it exports as `Any` otherwise.
    return mypy(place, "--follow-untyped-imports")


def strict_mypy(place: Place) -> list[Found]:
    # For it a name that a module only imports is `Any` elsewhere.
    return mypy(place, "--strict")


reads_optax = pyright, mypy_that_reads_optax
CHECKERS = [pyright, mypy, mypy_that_reads_optax, strict_mypy]


@pytest.mark.few(2)
@pytest.mark.parametrize("checker", CHECKERS)
def test_a_type_checker_finds_no_more_than_with_optax(checker, place):
    assert len(FILES) == 11
    found = checker(place)
    # `solve` has no counterpart in Optax, so that all that is found there is ours.
    at = {
        (x.file.removesuffix("_of_optax"), x.line)
        for x in found
        if x.file.endswith("_of_optax") and not x.file.startswith("solve")
    }
    ours = [x for x in found if x.file in FILES]
    assert [x for x in ours if (x.file, x.line) not in at] == []
    caught = {x.file for x in found} & WRONG.keys()
    missed = WRONG.keys() - caught
    assert missed <= (
        set() if place.has_optax and checker in reads_optax else needs_optax
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_user_s_file_runs(name):
    # As users have it.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        trained = runpy.run_path(str(FILES[name]))["trained"]
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(trained))
