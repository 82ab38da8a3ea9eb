"""A pytest plugin that lists test cases which assert nothing, and so cannot fail.

    PYTHONPYCACHEPREFIX=$(mktemp -d) python -m pytest -p benchmarks.idle_tests \\
        -o enable_assertion_pass_hook=true

The prefix is needed because `assert` is counted only in modules that are recompiled.
The plugin counts asserts that were reached, in tests and their helpers, comparisons of
`numpy.testing`, `pytest.raises` and `pytest.warns`, and subprocesses that must succeed.
A listed case checks at most that nothing is raised: see whether that is what it claims.
"""

import functools as ft
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest


TESTS = Path(__file__).parents[1] / "tests"
found = {"asserts": 0}


def _counted(f):
    @ft.wraps(f)
    def counting(*args, **kwargs):
        found["asserts"] += 1
        return f(*args, **kwargs)

    return counting


def pytest_configure(config):
    names = {path.stem for path in TESTS.glob("*.py") if "test_" not in path.stem}
    pytest.register_assert_rewrite(*(names - sys.modules.keys()))
    for name in dir(np.testing):
        if name.startswith("assert"):
            setattr(np.testing, name, _counted(getattr(np.testing, name)))
    for module, names in (
        (pytest, ["raises", "warns", "fail"]),
        (subprocess, ["check_call", "check_output"]),
    ):
        for name in names:
            setattr(module, name, _counted(getattr(module, name)))


def pytest_assertion_pass(item, lineno, orig, expl):
    found["asserts"] += 1


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    found["asserts"] = 0
    result = yield
    # A property of the report is also sent to the process that prints the summary.
    item.user_properties.append(("asserts", found["asserts"]))
    return result


def pytest_terminal_summary(terminalreporter):
    passed = terminalreporter.stats.get("passed", [])
    idle = [x.nodeid for x in passed if ("asserts", 0) in x.user_properties]
    terminalreporter.section("cases that assert nothing")
    for name in sorted(set(idle)):
        terminalreporter.write_line(name)
    terminalreporter.write_line(f"{len(idle)} in all")
