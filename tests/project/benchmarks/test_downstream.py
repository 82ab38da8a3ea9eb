"""Projects that build optimizers: what each offers to be run, and what was found."""

import json
import subprocess
import sys

import numpy as np
import pytest
from loops import each

from benchmarks.downstream import __main__ as page, harness


KEPT = json.loads(harness.EVIDENCE.read_text())


@each(harness.NAMES)
def test_a_project_says_where_it_is(name):
    row = harness.project(name)
    assert row.repository.count("/") == 1
    assert len(row.commit) == 40 and int(row.commit, 16)
    # Its packages are not installed here, so its file must import without them.
    assert not {"jax", "optax"} & set(row.packages.split())


@each(KEPT)
def test_all_that_runs_with_optax_runs_with_stepax(name):
    assert harness.wrong(name, KEPT[name]) == []


def test_the_page_shows_what_was_found():
    assert harness.table() in (page.ROOT / page.PAGES["projects"]).read_text()


def test_a_folder_is_complete_or_not_there(tmp_path):
    def make(new):
        new.mkdir()
        (new / "one").touch()
        if fails:
            raise OSError("no space left")

    fails, folder = True, tmp_path / "cache" / "project"
    with pytest.raises(OSError, match="no space"):
        harness.complete(folder, make)
    assert not any(folder.parent.iterdir())
    fails = False
    assert [x.name for x in harness.complete(folder, make).iterdir()] == ["one"]
    fails = True
    assert harness.complete(folder, make) == folder
    assert [x.name for x in folder.parent.iterdir()] == ["project"]


def test_differences_are_relative_to_an_array():
    a = np.array([1.0, 1e-8, np.nan])
    assert harness.far(a, a) == 0
    assert harness.far(a, a + [0, 1e-5, 0]) == pytest.approx(1e-5)
    assert harness.far(a, np.zeros(3)) == harness.far(a, a[:2]) == float("inf")
    assert harness.far(np.zeros(2), np.ones(2)) == 2


def test_what_only_optax_does_is_told():
    passed = {"Optax": {"a": "passed", "b": "skipped"}, "Stepax": {"a": "failed"}}
    found = harness.compared(passed)
    assert found == {"tests": 1, "passed": {"Optax": 1, "Stepax": 0}, "lost": ["a"]}
    found |= {"missing": ["x"], "differences": {"y": 1e-4, "z": 1e-6}}
    told = harness.wrong("vmoe", found)
    assert [x.rpartition(" ")[2] for x in told] == ["x", "a", "y"]
    found |= {"missing": [], "lost": ["a.test_ema_parity4", "a.test_ema_parity0"]}
    *lost, _ = harness.wrong("axlearn", found)
    assert [x.rpartition(".")[2] for x in lost] == ["test_ema_parity0"]
    found = {"missing": [], "differences": {}, "lost": [], "tests": 0}
    assert harness.wrong("vmoe", found) == ["no test ran with Optax"]
    report = '<a><testcase classname="a" name="b"><failure/></testcase></a>'
    assert harness.outcomes(report) == {"a.b": "failed"} and harness.outcomes("") == {}


PROGRAM = """
from benchmarks.downstream.project import stub
stub(("nothing",))
from nothing.below import A, f
class B(A.C): pass
assert not issubclass(B, A) and f(1).g(2).h is not None and B(3)
"""


def test_stubs_take_any_use():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, cwd=harness.ROOT)
