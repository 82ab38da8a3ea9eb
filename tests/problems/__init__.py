"""The collection: smooth functions with starts, minima and sources."""

import fnmatch
import hashlib
import importlib

from .problem import Problem as Problem


FREE = "more_garbow_hillstrom", "many_variables", "cute", "classics", "learning"
# Further ones of up to 1,500 variables, which most tables in the documentation omit.
FURTHER = "andrei", "more_cute"


def collect(pattern: str = "*", files: tuple[str, ...] = FREE) -> list[Problem]:
    """The problems whose name matches a shell pattern, or contains a word."""
    modules = [importlib.import_module(f".{name}", __name__) for name in files]
    found = [p for module in modules for p in module.collect()]
    fits = lambda name: fnmatch.fnmatch(name, pattern) or pattern in name
    return [p for p in found if fits(p.name)]


HALVES = "tuning", "held-out"


def half(name: str) -> str:
    """The half a problem belongs to, by the first bit of a checksum of its name.

    Numbers in the minimizer are chosen on the first half alone.
    """
    return HALVES[hashlib.sha256(name.encode()).digest()[0] % 2]
