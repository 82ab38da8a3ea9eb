"""Stepax refuses nothing that a program for Optax may mean: each error has a reason."""

from collections import Counter

import pytest
from raises import REASONS
from reached import raises


def entered() -> Counter[str]:
    """How many errors the table knows, by file and function."""
    found: Counter[str] = Counter()
    for lines in REASONS.values():
        for line in lines.split("\n"):
            name, _, many = line.strip().partition(" ")
            if name:
                found[name] += int(many or 1)
    return found


def differences(found: Counter[str], known: Counter[str]) -> list[str]:
    return [
        f"{name}: raises {found[name]} errors, and {known[name]} have a reason"
        for name in sorted({*found, *known})
        if found[name] != known[name]
    ]


def test_each_error_that_a_program_for_optax_can_reach_has_a_reason():
    wrong = differences(raises(), entered())
    assert not wrong, "\n".join(
        [
            "Run Optax on what is refused.  If it runs, and a program may mean that, "
            "accept it, with Optax's numbers; what is only likely a mistake becomes a "
            "rule of `diagnose`.  Otherwise enter the function in "
            "`tests/project/raises.py`, under the sentence why no program can mean it:",
            *wrong,
        ]
    )


def test_the_walk_finds_what_is_known_to_be_reached():
    found = raises()
    assert len(found) > 150
    for name in (
        "_schedules/basic.py::join_schedules",  # of a public function
        "_engine/factories/ranges.py::check",  # through a module that is imported
        "_wrappers/accumulate.py::MultiSteps._is_due",  # of a method
        "_losses/inputs.py::whole_labels",  # of a helper of a helper
        "_engine/trees/selection.py::_assign",  # through `rx`
    ):
        assert found[name] > 0, name
    assert not any(name.startswith(("solve/_m", "_checkpoint")) for name in found)


@pytest.mark.parametrize("more", [{"new.py::f": 1}, {"tree.py::dtype": 1}])
def test_a_new_error_is_named(more):
    known = entered()
    found = known + Counter(more)
    (said,) = differences(found, known)
    assert said.startswith(next(iter(more)))
