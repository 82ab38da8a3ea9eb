"""Which tests of `make test` execute which lines of `stepax`, recorded once.

    python -m benchmarks.covering --record FOLDER tests    records it in a folder
    python -m benchmarks.covering tests/a.py               runs those that stdin names

What follows goes to pytest.  Cases that are named on pytest's own command line would be
run as in `make test-all`, hence the second way; where stdin names none, all are run.

JAX traces a function once, and Stepax keeps plans: of several tests that need the same
trace the first is recorded.  So a test that is not recorded may execute a line.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from coverage import Coverage, CoverageData


LINES, CASES = "lines", "cases.json"


class Recorder:
    """A plugin of pytest that records the lines of each test that passes."""

    def __init__(self, folder: Path):
        self.cases = folder / CASES
        self.coverage = Coverage(
            str(folder / LINES), source=["stepax"], config_file=False
        )
        self.coverage.set_option("run:relative_files", True)
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        # Started for each test, as some trace their own programs.
        self.coverage.start()
        self.coverage.switch_context(item.nodeid)
        start = time.process_time()
        try:
            result = yield
            self.seconds[item.nodeid] = time.process_time() - start
            return result
        finally:
            self.coverage.stop()

    def pytest_sessionfinish(self):
        self.coverage.save()
        data = self.coverage.get_data()
        lines = Counter[str]()
        for path in data.measured_files():
            for tests in data.contexts_by_lineno(path).values():
                lines.update(tests)
        cases = {test: (time, lines[test]) for test, time in self.seconds.items()}
        self.cases.write_text(json.dumps(cases))


class Only:
    """A plugin of pytest that runs the cases, functions and files of these names."""

    def __init__(self, names: Iterable[str]):
        self.names = frozenset(names)

    def pytest_collection_modifyitems(self, config, items):
        dropped = [x for x in items if not self.names & forms(x.nodeid)]
        config.hook.pytest_deselected(items=dropped)
        items[:] = [x for x in items if self.names & forms(x.nodeid)]


def forms(name: str) -> set[str]:
    """A case, its function and its file."""
    return {name, name.partition("[")[0], name.partition("::")[0]}


class Covering:
    """What was recorded in a folder."""

    def __init__(self, folder: Path):
        self.data = CoverageData(str(folder / LINES))
        self.data.read()
        self.cases = json.loads((folder / CASES).read_text())

    def tests(self, path: str, first: int, last: int, seconds: float) -> list[str]:
        """Tests that execute one of these lines, or else the line that is nearest.

        Those that execute the fewest lines come first, and so many of them that they
        take so many seconds, with one for each file, which has to be imported.
        """
        lines = self.data.contexts_by_lineno(path)
        lines = {n: [x for x in lines[n] if x in self.cases] for n in lines}
        executed = {n for n in lines if lines[n]}
        near = executed & set(range(first, last + 1))
        if executed and not near:
            near = {min(executed, key=lambda n: abs(n - first))}
        found = {x for n in near for x in lines[n]}
        taken, files = [], set()
        for test in sorted(found, key=lambda x: (self.cases[x][1], x)):
            file = test.partition("::")[0]
            seconds -= self.cases[test][0] + (file not in files)
            if taken and seconds < 0:
                break
            files.add(file)
            taken.append(test)
        return taken


def main() -> int:
    match sys.argv[1:]:
        case ["--record", folder, *args]:
            return pytest.main(args, plugins=[Recorder(Path(folder))])
        case args:
            names = sys.stdin.read().splitlines()
            return pytest.main(args, plugins=[Only(names)] if names else [])


if __name__ == "__main__":
    sys.exit(main())
