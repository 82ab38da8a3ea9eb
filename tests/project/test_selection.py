"""Which cases `make test` and the parts of `make test-all` run, and what is skipped."""

import ast
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from cases import ROWS, traits
from selection import PROJECT, ROOT, Case, chosen, covering, narrow, skip_without


def cases(*marks, name="test", **tables):
    """The cases of a function, one for each row of the tables."""
    rows = [
        dict(zip(tables, x, strict=True)) for x in zip(*tables.values(), strict=True)
    ]
    return [
        SimpleNamespace(
            path=Path("test_it.py"),
            originalname=name,
            name=f"{name}[{i}]",
            nodeid=f"test_it.py::{name}[{i}]",
            callspec=SimpleNamespace(params=row),
            iter_markers=lambda: [SimpleNamespace(name=x, args=(1,)) for x in marks],
        )
        for i, row in enumerate(rows)
    ]


def test_the_markers_say_how_many_cases_run():
    found = {
        marks: len(chosen(cases(*marks, x=list("aabb"), y=list("1212"))))
        for marks in [(), ("few",), ("slow",), ("few", "slow"), ("slow", "few")]
    }
    assert found == {
        (): 4, ("few",): 1, ("slow",): 0, ("few", "slow"): 1, ("slow", "few"): 0
    }  # fmt: skip
    assert 2 <= len(chosen(cases("thinned", x=list("aabb"), y=list("1212")))) <= 3


def test_prose_and_tools_are_guarded_by_make_check():
    users, marked, inside = (
        cases(x=[1]), cases("project", x=[1, 2]), cases("slow", x=[1])
    )  # fmt: skip
    for case in inside:
        case.path = PROJECT / "site" / "test_it.py"
    every = [*users, *marked, *inside]
    assert chosen(every) == users
    assert chosen(every, "project") == marked
    assert chosen(every, "all") == every


# A page, what is measured for one, the site and what packs a release.
PROSE = re.compile(
    r"""docs/[\w./]+['"]|['"]docs['"]|\bPAGE\b|EVIDENCE|website|studies|['"]\.ci"""
)


def test_outside_of_their_folder_these_tests_are_marked():
    files = [x for x in (ROOT / "tests").rglob("test_*.py") if PROJECT not in x.parents]
    missing = []
    for file in files:
        source = file.read_text()
        for node in ast.parse(source).body if PROSE.search(source) else []:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                marks = {ast.unparse(x) for x in node.decorator_list}
                body = "\n".join(map(ast.unparse, node.body))
                if PROSE.search(body) and "pytest.mark.project" not in marks:
                    missing.append(f"{file.relative_to(ROOT)}: {node.name}")
    hint = "a test of prose or of a tool needs `@pytest.mark.project`, above others"
    assert not missing, f"{hint}: {missing}"


def test_no_two_files_have_one_name():
    """pytest imports them by their names, and collects none if two are the same."""
    names = Counter(x.name for x in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, number in names.items() if number > 1] == []


def test_functions_of_one_name_in_two_files_are_two():
    first, second = cases("few", x=list("abc")), cases("few", x=list("abc"))
    for case in second:
        case.path = Path("test_other.py")
    assert len(chosen([*first, *second])) == 2


def test_every_trait_of_the_factories_is_met_by_a_few():
    table = [Case(name, {"row": row}) for name, row in ROWS.items()]
    found = [x.name for x in covering(table)]
    every = {t for name in ROWS for t in traits(name)}
    assert {t for name in found for t in traits(name)} == every
    assert {"rule", "function", "slots", "batched", "elementwise"} < every
    assert len(found) < 15


def test_each_case_is_in_one_part():
    items = cases("slow", x=list(range(500)))
    parts = [chosen(items, f"{i}/7") for i in range(1, 8)]
    assert sorted(x.nodeid for part in parts for x in part) == sorted(
        x.nodeid for x in items
    )
    assert all(40 < len(part) < 110 for part in parts)
    assert chosen(items, "all") == items and chosen(items) == []


@pytest.mark.parametrize("which", ["", "1/7", "5/7", "all"])
@pytest.mark.parametrize("marker", ["few", "thinned", "slow"])
def test_what_does_not_run_is_not_made(marker, which):
    items = cases(marker, x=list("aaaabbbb"), y=list("12341234"))
    one = items[0]
    name, marks = one.originalname, one.iter_markers
    function = SimpleNamespace(
        name=name,
        originalname=name,
        path=one.path,
        nodeid=f"test_it.py::{name}",
        iter_markers=marks,
    )
    calls = [
        SimpleNamespace(id=str(i), params=x.callspec.params)
        for i, x in enumerate(items)
    ]
    narrow(SimpleNamespace(definition=function, _calls=calls), which)
    made = [x for x in items if x.name in {f"{name}[{c.id}]" for c in calls}]
    assert chosen(made, which) == chosen(items, which)
    assert len(made) == (len(chosen(items, which)) or 1)


def test_a_missing_package_of_others_skips_and_ours_do_not(monkeypatch):
    gone = ModuleNotFoundError(name="no_such_package.part")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(
        pytest.skip.Exception, match="^no_such_package is not installed"
    ):
        skip_without(gone)
    for name in ("stepax.nothing", "cases", "benchmarks.nothing", "jax.nothing", None):
        skip_without(ImportError(name=name))
    monkeypatch.setenv("CI", "1")
    skip_without(gone)
