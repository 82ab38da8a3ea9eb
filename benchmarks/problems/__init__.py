"""The collection: smooth functions, their starts and their minima, with sources."""

import fnmatch
import hashlib
import importlib

from .problem import Problem as Problem


FREE = "more_garbow_hillstrom", "many_variables", "cute", "classics", "learning"
# Further ones, up to 1,500 variables, which the tables in the documentation leave out.
FURTHER = "andrei", "more_cute"


def collect(pattern: str = "*", files: tuple[str, ...] = FREE) -> list[Problem]:
    """The problems whose name fits a shell pattern, or has the word in it."""
    modules = [importlib.import_module(f".{name}", __name__) for name in files]
    found = [p for module in modules for p in module.collect()]
    fits = lambda name: fnmatch.fnmatch(name, pattern) or pattern in name
    return [p for p in found if fits(p.name)]


HALVES = "tuning", "held-out"


def half(name: str) -> str:
    """To which half a problem belongs, by the first bit of a check sum of its name.

    Numbers in the minimizer are chosen on the first half alone.
    """
    return HALVES[hashlib.sha256(name.encode()).digest()[0] % 2]
