"""The package as a whole: what it imports, what it ships, how long its pieces are."""

import ast
import io
import re
import statistics
import subprocess
import sys
import tokenize
import tomllib
import zipfile
from pathlib import Path

import pytest
from pages import run_blocks

import stepax


ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "stepax").rglob("*.py"))
FILES = sorted(
    file
    for folder in ("stepax", "tests", "examples", "benchmarks")
    for file in (ROOT / folder).rglob("*.py")
)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def loaded_by(statement):
    """The modules that a new interpreter has loaded after `statement`."""
    names = subprocess.check_output(
        [sys.executable, "-c", f"{statement}; import sys; print(*sys.modules)"],
        text=True,
        cwd=ROOT,
    )
    return set(names.split())


def test_importing_stepax_imports_nothing_that_jax_has_not():
    new = loaded_by("import stepax") - loaded_by("import jax, numpy")
    outside = {x for x in new if x.split(".")[0] not in sys.stdlib_module_names}
    assert {x for x in outside if x.split(".")[0] != "stepax"} == set()


def test_run_time_dependencies_are_jax_and_numpy():
    names = {re.split("[<>=]", line)[0] for line in PROJECT["dependencies"]}
    assert names == {"jax", "numpy"}


def test_version_is_said_once_more_and_the_same():
    assert stepax.__version__ == PROJECT["version"]


@pytest.mark.parametrize("file", SOURCES, ids=lambda f: str(f.relative_to(ROOT)))
def test_neither_optax_nor_private_jax_is_imported(file):
    banned = re.compile(r"optax(\.|$)|jax\._src")
    assert [x for x in imported(file) if banned.match(x)] == []


def imported(file):
    """The absolute imports of a file, `jax.jit` for `from jax import jit`."""
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                yield from (f"{module}.{alias.name}" for alias in names)


def test_blocks_of_the_readme_run(capsys):
    assert run_blocks("README.md") >= 4
    fitted, rate = map(float, capsys.readouterr().out.split())
    assert fitted < 1e-2
    assert rate == pytest.approx(3e-4)


def test_no_file_is_longer_than_450_lines():
    lengths = {file: len(file.read_text().splitlines()) for file in FILES}
    assert {f: n for f, n in lengths.items() if n > 450} == {}


def span(first, last):
    return range(first.lineno, last.end_lineno + 1)


def code_lines(source):
    """The numbers of the lines that hold more than a comment or a docstring."""
    docstrings = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                docstrings.update(span(node, node))
    skipped = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines - docstrings


def functions(file):
    """Each function with the number of code lines in its body; nested ones count."""
    source = file.read_text()
    lines = code_lines(source)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = lines.intersection(span(node.body[0], node.body[-1]))
            yield f"{file.relative_to(ROOT)}:{node.lineno} {node.name}", len(body)


def test_functions_are_short():
    """Half under 8 lines, nine in ten under 30, none above 50."""
    lengths = dict(pair for file in SOURCES for pair in functions(file))
    assert {name: n for name, n in lengths.items() if n > 50} == {}
    assert statistics.median(lengths.values()) < 8
    assert statistics.quantiles(lengths.values(), n=10)[-1] < 30


def test_wheel_holds_the_package_its_licence_and_nothing_else(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    expected = {str(file.relative_to(ROOT)) for file in SOURCES} | {"stepax/py.typed"}
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert any(name.endswith("licenses/LICENSE") for name in names)
