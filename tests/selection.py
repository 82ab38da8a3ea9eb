"""Which cases run, and what is skipped for want of a package."""

import os
from importlib.util import find_spec
from pathlib import Path
from zlib import crc32

import pytest


ROOT = Path(__file__).parents[1]


def chosen(items, which=""):
    """The cases of `make test`, or `all`, or of all the third part of 32 as `3/32`."""
    if which == "all":
        return items
    if which:
        part, parts = map(int, which.split("/"))
        return [x for x in items if crc32(x.nodeid.encode()) % parts == part % parts]
    functions = {}
    for item in items:
        functions.setdefault((item.path, item.originalname), []).append(item)
    return [x for cases in functions.values() for x in in_short(cases)]


def in_short(cases):
    """Of the cases of a function those that `make test` runs."""
    marks = [x for x in cases[0].iter_markers() if x.name in ("slow", "few", "thinned")]
    nearest = marks[0].name if marks else ""  # of a function, before that of a file
    if nearest == "slow":
        return []
    turn = cases[0].originalname  # other cases for other functions
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

    callspec = getattr(case, "callspec", None)
    row = callspec.params.get("row") if callspec else None
    return isinstance(row, Row) and keeps_factors_of(row.name)


def covering(cases):
    """So many that each trait of a factory is met, or each value of each parameter."""
    met, found = set(), []
    for case in cases:
        new = features(case.callspec.params)
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
