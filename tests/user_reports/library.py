"""The library that the tests of this folder run on: Stepax, or one to compare it with.

`STEPAX_REPORTS_ON=optax` runs them on Optax, as `website/tables/user_reports.py` does,
to show that each of them finds what users report.  Tests take the library from here as
`optax`, and look names up when they run, because Optax lacks some.
"""

import importlib
import os
from dataclasses import replace
from typing import Any

import cases


NAME = os.environ.get("STEPAX_REPORTS_ON", "stepax")
optax: Any = importlib.import_module(NAME)
importlib.import_module(f"{NAME}.contrib")


def rows(*args: Any, **traits: Any) -> list:
    """Rows of the registry that Optax has, too: in all others it could but fail."""
    theirs = importlib.import_module("optax"), importlib.import_module("optax.contrib")
    chosen = cases.rows(*args, **traits)
    return [x for x in chosen if any(hasattr(home, x.id) for home in theirs)]


def make(row: Any, **more: Any) -> Any:
    """A transformation of a row of the registry, made by the library under test."""
    home = optax if hasattr(optax, row.name) else optax.contrib
    return cases.make(replace(row, factory=getattr(home, row.name)), **more)
