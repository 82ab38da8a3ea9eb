"""Which cases run, and what is skipped for want of a package."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import pytest


ROOT = Path(__file__).parents[1]
MARKERS = "slow", "few", "thinned"
# What guards prose, packaging and our own tools, as what is marked `project` does.
PROJECT = ROOT / "tests" / "project"


class Case(NamedTuple):
    """What the choice depends on: the case of a function, made yet or not."""

    name: str
    params: dict


def chosen(items, which=""):
    """Cases of `make test`, of `make check` (`project`), `all`, or a part as `3/32`."""
    if which == "all":
        return items
    if not is_short(which):
        return [x for x in items if in_part(x.nodeid, which)]
    items = [x for x in items if is_of_project(x) == (which == "project")]
    functions = {}
    for item in items:
        functions.setdefault((item.path, item.originalname), []).append(item)
    return [x for cases in functions.values() for x in in_short(cases)]


def is_short(which):
    """Whether so few cases run as the markers say."""
    return which in ("", "project")


def is_of_project(item):
    marked = any(x.name == "project" for x in item.iter_markers())
    return marked or PROJECT in item.path.parents


def in_part(nodeid, which):
    part, parts = map(int, which.split("/"))
    return crc32(nodeid.encode()) % parts == part % parts


def in_short(items):
    """Of the cases of a function those that `make test` runs."""
    params = [x.callspec.params if hasattr(x, "callspec") else {} for x in items]
    cases = [Case(x.name, y) for x, y in zip(items, params, strict=True)]
    kept = {x.name for x in taken(items[0], cases)}
    return [x for x in items if x.name in kept]


def narrow(metafunc, which=""):
    """Drop the cases that do not run before pytest makes an object of each of them.

    One is kept in any case, for pytest to see that the function takes parameters.
    """
    calls = getattr(metafunc, "_calls", None)  # no part of pytest's interface
    if not calls or which == "all":
        return
    function = metafunc.definition
    cases = [Case(f"{function.name}[{x.id}]", x.params) for x in calls]
    if not is_short(which):
        folder = function.nodeid.removesuffix(function.name)
        kept = {x.name for x in cases if in_part(folder + x.name, which)}
    else:
        kept = {x.name for x in taken(function, cases)}
    left = [c for c, x in zip(calls, cases, strict=True) if x.name in kept]
    calls[:] = left or calls[:1]


def taken(function, cases):
    """Of the cases of a function those that `make test` runs, by its markers."""
    marks = [x for x in function.iter_markers() if x.name in MARKERS]
    nearest = marks[0].name if marks else ""  # of a function, before that of a file
    if nearest == "slow":
        return []
    turn = function.originalname  # other cases for other functions
    in_turn = lambda x: (is_dear(x), crc32(f"{turn} {x.name}".encode()))
    by_turn = sorted(cases, key=in_turn) if nearest else cases
    if nearest == "few":
        return by_turn[: marks[0].args[0]]
    return covering(by_turn) if nearest == "thinned" else cases


def is_dear(case):
    """Whether its optimizer decomposes matrices, which takes seconds to compile.

    Such cases come last: what they have in common has tests of its own.
    """
    from cases import Row, keeps_factors_of  # after the environment is set

    row = case.params.get("row")
    return isinstance(row, Row) and keeps_factors_of(row.name)


def covering(cases):
    """So many that each trait of a factory is met, or each value of each parameter."""
    met, found = set(), []
    for case in cases:
        new = features(case.params)
        if not new <= met:
            met |= new
            found.append(case)
    return found


def features(params):
    if "row" in params:
        from cases import traits  # after the environment is set

        return traits(params["row"].name)
    return {(k, x if isinstance(x, str) else id(x)) for k, x in params.items()}


def skip_without(error):
    """Skip for want of a package of others; where `CI` is set, none may be missing."""
    name = (getattr(error, "name", None) or "").partition(".")[0]
    ours = [ROOT / name, ROOT / "tests" / f"{name}.py"]
    if not name or any(x.exists() for x in ours) or find_spec(name):
        return
    if not os.environ.get("CI"):
        pytest.skip(f"{name} is not installed", allow_module_level=True)
