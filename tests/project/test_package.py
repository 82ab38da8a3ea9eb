"""The package as a whole: what it imports, what it ships, how long its pieces are."""

import ast
import io
import os
import re
import runpy
import shutil
import statistics
import subprocess
import sys
import tokenize
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from inside import HOMES
from loops import each

import stepax


ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "stepax").rglob("*.py"))
FILES = sorted(
    file
    for folder in (".ci", "stepax", "tests", "examples", "benchmarks")
    for file in (ROOT / folder).rglob("*.py")
)
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = CONFIG["project"]
EXTRAS = PROJECT["optional-dependencies"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
CHECK = runpy.run_path(str(ROOT / ".ci/wheel.py"))
SBOM = runpy.run_path(str(ROOT / ".ci/sbom.py"))


def loaded_by(statement):
    """The modules that a new interpreter has loaded after `statement`."""
    names = subprocess.check_output(
        [sys.executable, "-c", f"{statement}; import sys; print(*sys.modules)"],
        text=True,
        cwd=ROOT,
    )
    return set(names.split())


@pytest.mark.slow
def test_importing_stepax_imports_nothing_that_jax_has_not_and_nothing_late():
    new = loaded_by("import stepax") - loaded_by("import jax, numpy")
    outside = {x for x in new if x.split(".")[0] not in sys.stdlib_module_names}
    assert {x for x in outside if x.split(".")[0] != "stepax"} == set()
    late = {f"stepax.{x}" for x in HOMES}
    assert late & new == set()


def test_run_time_dependencies_are_jax_and_numpy():
    names = {re.split("[<>=]", line)[0] for line in PROJECT["dependencies"]}
    assert names == {"jax", "numpy"}


def test_version_is_said_twice_more_and_the_same():
    assert stepax.__version__ == PROJECT["version"] == CITATION["version"]


def test_the_citation_has_what_its_format_requires_and_says_what_the_package_does():
    required = {"cff-version", "message", "title", "authors"}
    assert required <= CITATION.keys()
    assert CITATION["cff-version"] == "1.2.0"
    assert CITATION["authors"] == PROJECT["authors"]
    for ours, theirs in {"abstract": "description"}.items() | {
        (name, name) for name in ("keywords", "license")
    }:
        assert CITATION[ours] == PROJECT[theirs]


def test_users_are_sent_to_extras_that_there_are():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *SOURCES]
    text = "".join(file.read_text() for file in pages)
    named = re.findall(r"(?:stepax|\.)\[([a-z,]+)\]\"", text)
    named += re.findall(r"install\('([a-z]+)'\)", text)
    assert {x for names in named for x in names.split(",")} == set(EXTRAS)


def test_the_recipe_for_conda_has_the_pins_of_the_project():
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text())
    needs = {
        k: [x.replace(" ", "") for x in v] for k, v in recipe["requirements"].items()
    }
    python = "python" + PROJECT["requires-python"]
    assert needs["run"] == sorted([*PROJECT["dependencies"], python])
    assert needs["host"] == sorted([*CONFIG["build-system"]["requires"], "pip", python])
    assert recipe["context"]["version"] == PROJECT["version"]
    about = recipe["about"]
    assert recipe["package"]["name"] == PROJECT["name"]
    assert about["summary"] == PROJECT["description"]
    assert about["license"] == PROJECT["license"]
    assert [about["license_file"]] == PROJECT["license-files"]


def test_the_build_is_the_same_in_the_tests_and_in_a_release():
    groups = CONFIG["dependency-groups"]
    assert all(x in groups["test"] for x in CONFIG["build-system"]["requires"])
    assert all("==" in tool for tool in groups["release"])


def test_workflows_name_targets_of_the_makefile():
    workflows = (ROOT / ".github/workflows").glob("*.yml")
    told = "".join(file.read_text() for file in workflows)
    jobs = re.findall(r"run: make ([\w-]+)", told)
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert "wheel-test" in jobs
    assert set(jobs) <= set(targets)


@each(SOURCES)
def test_neither_optax_nor_private_jax_nor_what_is_not_shipped_is_imported(file):
    banned = re.compile(r"(optax|benchmarks|examples|website|tests)(\.|$)|jax\._src")
    assert [x for x in imported(file) if banned.match(x)] == []


def imported(file):
    """The absolute imports of a file, `jax.jit` for `from jax import jit`."""
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        match node:
            case ast.If(test=ast.Name("TYPE_CHECKING")):
                node.body.clear()  # never run
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                yield from (f"{module}.{alias.name}" for alias in names)


def test_no_file_is_longer_than_450_lines():
    # But the list of all names, a line for each, is as long as there are names.
    files = [x for x in FILES if x != ROOT / "stepax" / "__init__.py"]
    lengths = {file: len(file.read_text().splitlines()) for file in files}
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
    """Half under 8 lines, nine in ten under 30, none above 45."""
    lengths = dict(pair for file in SOURCES for pair in functions(file))
    assert {name: n for name, n in lengths.items() if n > 45} == {}
    assert statistics.median(lengths.values()) < 8
    assert statistics.quantiles(lengths.values(), n=10)[-1] < 30


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def test_wheel_holds_the_package_its_licence_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    expected = {str(file.relative_to(ROOT)) for file in SOURCES} | {"stepax/py.typed"}
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert CHECK["faults"](wheel, f"v{PROJECT['version']}") == []


# 600 kB was asked, and is out of reach with docstrings and comments in the files: 333
# files of 2.2 MB of source, 0.6 MB of it docstrings, take 794 kB at the highest level
# of DEFLATE, the one method that all installers read, and their names 45 kB.  Then
# stacked models came, in 1,000 lines of their own, for which 10 kB more are allowed.
LARGEST_WHEEL = 860_000


def test_the_wheel_is_small(wheel):
    assert wheel.stat().st_size < LARGEST_WHEEL


@pytest.mark.slow
def test_a_wheel_is_built_twice_to_the_same_bytes(tmp_path):
    built = []
    for when, mode in ((1_600_000_000, 0o644), (1_700_000_000, 0o600)):
        tree = tmp_path / str(when)
        kept = shutil.ignore_patterns(".git", ".venv*", ".cache", "__pycache__")
        shutil.copytree(ROOT, tree, ignore=kept)
        for file in tree.rglob("*"):
            os.utime(file, (when, when))
            file.chmod(0o755 if file.is_dir() else mode)
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
        settings = os.environ | {"SOURCE_DATE_EPOCH": "1650000000"}
        subprocess.run(build, cwd=tree, check=True, env=settings)
        built += [file.read_bytes() for file in tree.glob("dist/*.whl")]
    assert len(built) == 2
    assert built[0] == built[1]


def test_the_bill_of_materials_lists_what_the_wheel_needs(wheel):
    found = SBOM["bill"](wheel)
    assert found["metadata"]["component"]["version"] == PROJECT["version"]
    listed = {
        x["name"] + "".join(y["value"] for y in x.get("properties", ()))
        for x in found["components"]
    }
    assert listed == set(PROJECT["dependencies"])
    assert SBOM["bill"](wheel) == found
    assert CHECK["faults"](wheel) == []


# An action by version, and why.
BY_VERSION = {"pypa/gh-action-pypi-publish": "the comment in release.yml says it"}


def test_actions_are_named_by_commit():
    files = sorted((ROOT / ".github/workflows").glob("*.yml"))
    uses = [x for file in files for x in re.findall(r"uses: (.*)", file.read_text())]
    assert len(uses) > 10
    by_commit = re.compile(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    others = {x.split("@")[0] for x in uses if not by_commit.fullmatch(x)}
    assert others == set(BY_VERSION)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("drop", "add", "fault"),
    [
        ("stepax/py.typed", None, "stepax/py.typed is missing"),
        ("stepax/__init__.py", None, "stepax/__init__.py is missing"),
        (None, "docs/rules.md", "docs/rules.md is neither in stepax/ nor in stepax-"),
        (None, "stepax/tests/cases.py", "stepax/tests/cases.py is a test"),
        (None, "stepax/test_layout.py", "stepax/test_layout.py is a test"),
    ],
)
def test_a_wheel_of_other_contents_is_refused(wheel, tmp_path, drop, add, fault):
    other = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(other, "w") as new:
        for name in old.namelist():
            if name != drop:
                new.writestr(name, old.read(name))
        if add:
            new.writestr(add, "")
    (found,) = CHECK["faults"](other)
    assert found.startswith(fault)


def test_a_release_is_refused_whose_tag_is_another_version(wheel, capsys):
    assert CHECK["main"]([str(wheel), "--tag", "v99.0"]) == 1
    assert f"the tag is v99.0, the version {PROJECT['version']}" in (
        capsys.readouterr().out
    )


def test_the_first_program_of_a_page_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```sh\nls\n```\n```python\na = 1\n```\n```python\nb = 2\n```\n")
    assert CHECK["first_program"](page) == "a = 1\n"
    page.write_text("```sh\nls\n```\n")
    with pytest.raises(ValueError, match="there is no block of Python in .*page.md"):
        CHECK["first_program"](page)


def assemble(folder):
    """Run `make changelog` in a folder with all that it reads."""
    build = ["towncrier", "build", "--yes", "--version", "99.0", "--date", "2000-01-01"]
    return subprocess.run(
        [sys.executable, "-m", *build], cwd=folder, capture_output=True, text=True
    )


@pytest.fixture
def news(tmp_path):
    for name in ("pyproject.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "changelog.d", tmp_path / "changelog.d")
    return tmp_path


def test_every_line_of_every_piece_comes_into_the_changelog(news):
    folder = news / "changelog.d"
    (folder / "7.breaking.md").write_text("One.\nTwo.\n\nThree.\n")
    (folder / "8.deprecation.md").write_text("Four.\n")
    kept = {"README.md", "template.md.jinja"}
    pieces = [file for file in folder.iterdir() if file.name not in kept]
    lines = [x for file in pieces for x in file.read_text().splitlines() if x]
    before = (news / "CHANGELOG.md").read_text()
    done = assemble(news)
    assert done.returncode == 0, done.stderr
    assert {file.name for file in folder.iterdir()} == kept
    after = (news / "CHANGELOG.md").read_text()
    head, _, section = after.partition("\n## [99.0] - 2000-01-01\n")
    assert before.startswith(head)
    assert "\n### Breaking\n\n- One.\n- Two.\n- Three.\n" in section
    assert "\n\n### Deprecated\n\n- Four.\n" in section
    shown = [x[2:] for x in section.splitlines() if x.startswith("- ")]
    old = [x[2:] for x in before.splitlines() if x.startswith("- ")]
    assert sorted(shown) == sorted(lines + old)


def test_a_piece_of_no_kind_is_an_error_and_loses_nothing(news):
    (news / "changelog.d/7.changed.md").write_text("Lost.\n")
    done = assemble(news)
    assert done.returncode != 0
    assert "7.changed.md" in done.stderr
    assert (news / "CHANGELOG.md").read_text() == (ROOT / "CHANGELOG.md").read_text()
