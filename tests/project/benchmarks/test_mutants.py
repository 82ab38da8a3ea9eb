"""The faults that `make mutants` plants are programs, other ones, and of all kinds.

What it says of them is what the tests say, whichever it runs first.
"""

import ast
import json

import pytest
from coverage import CoverageData

from benchmarks import mutants
from benchmarks.covering import CASES, LINES, Covering
from benchmarks.faults import ROOMS, ROOT, chosen, faults_of


def test_each_fault_is_another_program():
    faults = chosen(100)
    assert len({x.name for x in faults}) == 100
    assert {x.room for x in faults} == set(ROOMS)
    assert len({x.kind for x in faults}) == 8
    for fault in faults:
        source = (ROOT / fault.path).read_bytes()
        start, end = fault.place
        assert source[start:end].decode() == fault.old
        changed = source[:start] + fault.new.encode() + source[end:]
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source)), fault


def test_messages_types_imports_and_defaults_are_left_alone(tmp_path, monkeypatch):
    (tmp_path / "file.py").write_text(
        "import a\nN = 1 + 1\n\n"
        "def f(x: int = 1, *, y: tuple[1] = 2) -> 3:\n"
        '    """A docstring."""\n'
        "    if x < 0:\n"
        '        raise ValueError(f"{x + 1} is negative" + "!")\n'
        "    return sum(x, axis=1)\n"
    )
    monkeypatch.setattr("benchmarks.faults.ROOT", tmp_path)
    found = [(x.where, x.kind, x.old, x.new) for x in faults_of("file.py")]
    assert sorted(found) == [
        ("f", "axis", "1", "0"),
        ("f", "bound", "x < 0", "(x <= 0)"),
        ("f", "condition", "x < 0", "(not (x < 0))"),
        ("f", "constant", "0", "1"),
        ("f", "constant", "1", "2"),
    ]


def test_tests_that_execute_little_else_come_first(tmp_path):
    lines = {"a.py::broad": {3, 4, 5}, "b.py::narrow[x]": {4}, "a.py::slow": {4, 5}}
    seconds = {"a.py::broad": 1, "b.py::narrow[x]": 1, "a.py::slow": 50}
    data = CoverageData(str(tmp_path / LINES))
    for test, executed in lines.items():
        data.set_context(test)
        data.add_lines({"file.py": executed})
    cases = {test: (seconds[test], len(lines[test])) for test in lines}
    (tmp_path / CASES).write_text(json.dumps(cases))
    covering = Covering(tmp_path)
    ordered = ["b.py::narrow[x]", "a.py::slow", "a.py::broad"]
    assert covering.tests("file.py", 4, 4, seconds=90) == ordered
    assert covering.tests("file.py", 4, 5, seconds=10) == ordered[:1]
    assert covering.tests("file.py", 3, 3, seconds=0) == ["a.py::broad"]
    # No test executes lines 1 and 7: line 3 and line 5 are the nearest.
    assert covering.tests("file.py", 1, 1, seconds=90) == ["a.py::broad"]
    assert covering.tests("file.py", 7, 7, seconds=90) == ordered[1:]
    assert covering.tests("other.py", 1, 1, seconds=90) == []


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A tree with one file, and its copy."""
    monkeypatch.setattr("benchmarks.faults.ROOT", tmp_path)
    monkeypatch.setattr("benchmarks.mutants.ROOT", tmp_path)
    for folder in (tmp_path, tmp_path / "tree"):
        folder.mkdir(exist_ok=True)
        (folder / "file.py").write_text("def f(x, y):\n    return x + y, 2, 5\n")
    return tmp_path


def test_faults_are_planted_together_where_they_do_not_overlap(files):
    faults = list(faults_of("file.py"))
    together = mutants.apart(faults)
    assert [x.new for x in faults] == ["(x - y)", "(x)", "3", "6"]
    assert [x.new for x in together] == ["(x - y)", "3", "6"]
    file = files / "tree" / "file.py"
    with mutants.planted(together, files / "tree"):
        assert file.read_text() == "def f(x, y):\n    return (x - y), 3, 6\n"
    assert file.read_text() == (files / "file.py").read_text()


def test_faults_planted_together_are_judged_alone(files, monkeypatch):
    def run_tests(tree, which, *args, only=()):
        """Tests see `3`, `x + y` while there is no 3, and both; one fails anyway."""
        source = (tree / "file.py").read_text()
        changed, three = "x + y" not in source, "3" in source
        failed = ["tests/two"] * three + ["tests/sum"] * (changed and not three)
        failed += ["tests/both"] * (changed and three)
        failed += ["tests/broken"]
        return [x for x in failed if not only or x in only]

    monkeypatch.setattr("benchmarks.mutants.run_tests", run_tests)
    faults = list(faults_of("file.py"))
    found = dict(mutants.late_killers(faults, files / "tree", "", jobs=1))
    assert {x.new: test for x, test in found.items()} == {
        "3": "tests/two",
        "(x - y)": "tests/sum",
        "(x)": "tests/sum",
    }
