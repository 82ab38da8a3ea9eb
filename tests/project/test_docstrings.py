"""What `help` says of a public function: every argument, on one screen."""

import inspect
import math
import re
import sys
from collections.abc import Callable

import pytest
from inside import ROWS
from loops import each
from public import FUNCTIONS


every_function = each(FUNCTIONS)


def explained(f: Callable) -> set[str]:
    """The names that a docstring explains: `a, b: what they are.`"""
    lists = re.findall(r"^((?:\w+, )*\w+):\s", inspect.getdoc(f) or "", re.MULTILINE)
    return {name for names in lists for name in names.split(", ")}


@every_function
def test_every_argument_is_explained(name):
    f = FUNCTIONS[name]
    missing = set(inspect.signature(f).parameters) - explained(f) - OTHERS
    assert not missing
    elsewhere = re.compile(r": (as in|as for|those of)\s+`(?!jax|numpy)")
    assert not elsewhere.search(inspect.getdoc(f) or "")


# Arguments by any name, which are handed on to functions of the caller's.
OTHERS = {"kwargs", "extra_args"}

# Lines of a docstring; a screen of 88 columns is `SCREEN` lines high.
LINES, SCREEN = 26, 45  # an optimizer has a line for its paper
LONGER = {
    "stepax.minimize": 30,  # it has 15 arguments, and says what is differentiable
    "stepax.solve.least_squares": 33,  # it has 15 arguments, two of them lists of words
    "stepax.contrib.muon": 27,  # it has 25 arguments, of two optimizers
    "stepax.checkpoint.from_torch": 31,  # with a table of PyTorch's optimizers
    "stepax.contrib.gauss_newton": 29,  # it reads three functions of the user
}


@every_function
def test_a_docstring_is_short(name):
    lines = len(said(FUNCTIONS[name]).splitlines())
    assert lines <= LONGER.get(name, LINES)


def said(f: Callable) -> str:
    """The docstring without its example, which is as short again as it can be."""
    return re.split(r"\n+>>> ", inspect.getdoc(f) or "")[0]


OPTIMIZERS = [name for name, row in ROWS.items() if row.kind == "optimizer"]


def test_each_optimizer_names_its_paper():
    """Authors and year in the docstring, the number where the registry has one; the
    file says the title, too."""
    assert len(OPTIMIZERS) > 70  # the registry is full, as all modules are imported
    wrong = []
    for name in OPTIMIZERS:
        row = ROWS[name]
        first = " ".join((inspect.getdoc(row.factory) or "").split("\n\n")[0].split())
        cited = re.search(r"\(([^()]*[A-Z][\w ,.]*, (?:19|20)\d\d\b[^()]*)\)", first)
        number = re.sub(r"^(arXiv:|doi:|DOI |https://)", "", row.paper or "")
        title = "Adaptive Methods for Nonconvex Optimization" if name == "yogi" else ""
        if not cited or (title or number) not in cited[1]:
            wrong.append(f"{name}: {first}")
        elif not set(re.findall(r"[A-Z]\w+(?=,| and| et)", cited[1])) <= words_of(row):
            wrong.append(f"{name}: the file does not name {cited[1]}")
    assert wrong == []


def words_of(row) -> set[str]:
    module = sys.modules[inspect.unwrap(row.factory).__module__]
    return set(re.findall(r"\w+", f"{module.__doc__}"))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_help_of_an_optimizer_fits_on_one_screen(name):
    """With the signature as a paragraph: Python 3.13 shows an argument a line, and no
    docstring can make up for an optimizer of 26 arguments there."""
    f = ROWS[name].factory
    text = [f"{name}{inspect.signature(f)}", *said(f).splitlines()]
    height = sum(max(1, math.ceil((4 + len(line)) / 88)) for line in text)
    longer = max(0, LONGER.get(f"stepax.contrib.{name}", LINES) - LINES)
    # Above it a title and a blank line; a line of the signature, and one of its own.
    assert height + 2 <= SCREEN + 2 * longer
