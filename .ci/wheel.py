"""Checks a wheel: what it holds, and that it runs where nothing else is installed.

`python .ci/wheel.py dist/*.whl --tag v0.1.0 --run README.md` says what is wrong with
the wheel, installs it with its dependencies into a new environment, and runs the first
program of the page there.  It needs nothing but Python.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path


def faults(wheel: Path, tag: str | None = None) -> list[str]:
    """What is wrong with the contents of a wheel, a sentence each."""
    _, version, *_ = wheel.name.split("-")
    info = f"stepax-{version}.dist-info"
    names = zipfile.ZipFile(wheel).namelist()
    strange = [x for x in names if x.split("/")[0] not in ("stepax", info)]
    tests = [x for x in names if re.search(r"(^|/)(tests?/|test_|conftest)", x)]
    missing = [
        x
        for x in ("stepax/__init__.py", "stepax/py.typed", f"{info}/licenses/LICENSE")
        if x not in names
    ]
    found = [f"{x} is neither in stepax/ nor in {info}/" for x in strange]
    found += [f"{x} is a test" for x in tests]
    found += [f"{x} is missing" for x in missing]
    if tag is not None and tag != f"v{version}":
        found.append(f"the tag is {tag}, the version {version}")
    return found


def first_program(page: Path) -> str:
    """The first block of Python of a page."""
    found = re.search(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    if found is None:
        raise ValueError(f"there is no block of Python in {page}")
    return found[1]


def run_alone(wheel: Path, program: str) -> str:
    """What a program prints where the wheel and its dependencies are all there is."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder, "bin", "python")
        # `-I` keeps this folder, `PYTHONPATH` and the user's own packages out.
        alone = [python, "-I"]
        subprocess.run([*alone, "-m", "pip", "install", "--quiet", wheel], check=True)
        file = Path(folder, "program.py")
        file.write_text(program)
        done = subprocess.run(
            [*alone, "-W", "error", file],
            check=True,
            cwd=folder,
            env=dict(os.environ, JAX_PLATFORMS="cpu"),
            stdout=subprocess.PIPE,
            text=True,
        )
    return done.stdout


def main(args: list[str]) -> int:
    """Check the wheel; the exit code is 1 if anything is wrong with it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--tag", help="the tag of the release, such as v0.1.0")
    parser.add_argument(
        "--run", type=Path, metavar="PAGE", help="run its first program"
    )
    given = parser.parse_args(args)
    wheel = given.wheel.resolve()
    found = faults(wheel, given.tag)
    print(*found or [f"{wheel.name} holds what it should"], sep="\n")
    if not found and given.run:
        told = run_alone(wheel, first_program(given.run))
        print(f"alone, the first program of {given.run} prints {told.strip()}")
        if not float(told) < 1e-2:
            found.append(f"the loss is {told.strip()}, and not below 0.01")
            print(found[-1])
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
