"""The faults that `make mutants` plants are programs, other ones, and of all kinds."""

import ast

from benchmarks.mutants import ROOMS, ROOT, chosen, faults_of


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
    monkeypatch.setattr("benchmarks.mutants.ROOT", tmp_path)
    found = [(x.where, x.kind, x.old, x.new) for x in faults_of("file.py")]
    assert sorted(found) == [
        ("f", "axis", "1", "0"),
        ("f", "bound", "x < 0", "(x <= 0)"),
        ("f", "condition", "x < 0", "(not (x < 0))"),
        ("f", "constant", "0", "1"),
        ("f", "constant", "1", "2"),
    ]
