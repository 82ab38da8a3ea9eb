"""The work of matching names grows with their number, and not with its square."""

import sys

import numpy as np
import pytest
from inside import match

from stepax._checkpoint import adopt, entries, rename


def calls(run):
    """How many functions of Python and C are called."""
    count = 0

    def see(frame, event, arg):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(see)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


class Counted(tuple):
    """A path that counts how often it is compared with another, or hashed."""

    compared = 0

    def __eq__(self, other):
        Counted.compared += 1
        return tuple.__eq__(self, other)

    def __hash__(self):
        Counted.compared += 1
        return tuple.__hash__(self)


def named(n):
    return entries({f"layer{i}": {"w": np.zeros(2, np.float32)} for i in range(n)})


def of_one_name(n):
    """Slots of one name, each under wrappers of its own."""
    return [
        x._replace(owner="S", own=("count",), where=Counted([f"w{i}"]))
        for i, x in enumerate(named(n))
    ]


def bare(found):
    return [x._replace(owner="", own=x.names, where=()) for x in found]


def paths(found):
    return [Counted(x.names) for x in found]


def moved(found):
    return {"/".join(x.names): f"new/{x.names[0]}" for x in found}


WORK = {
    "names": lambda n: match(named(n), named(n), paths(named(n))),
    "missing": lambda n: match(named(n)[::2], named(n), paths(named(n))),
    "one name": lambda n: match(of_one_name(n), of_one_name(n), []),
    "unclear": lambda n: match(of_one_name(n)[1:], of_one_name(n)[:-9], [("count",)]),
    "renamed": lambda n: rename(moved(named(n)), named(n), named(n)),
    "adopted": lambda n: adopt(bare(named(n)), of_one_name(n)),
}


@pytest.mark.parametrize("name", WORK)
def test_matching_is_linear(name):
    """Four times as many names need at most five times the calls and comparisons."""

    def work(n):
        Counted.compared = 0
        return calls(lambda: WORK[name](n)) + Counted.compared

    work(10)
    assert work(800) < 5 * work(200)


def test_each_array_of_a_large_tree_finds_its_place():
    found = named(3000)
    swapped = found[::-1]
    result = match(found, swapped, paths(found))
    assert result.chosen == [*range(3000)][::-1]
    assert not (result.missing or result.extra or result.unclear)
