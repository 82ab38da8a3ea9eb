"""What `help` says of a public function: every argument, on one screen."""

import inspect
import math
import re
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
LINES, SCREEN = 25, 45
LONGER = {
    "stepax.minimize": 30,  # it has 15 arguments, and says what is differentiable
    "stepax.solve.least_squares": 33,  # it has 15 arguments, two of them lists of words
    "stepax.contrib.muon": 27,  # it has 25 arguments, of two optimizers
    "stepax.checkpoint.from_torch": 31,  # with a table of PyTorch's optimizers
    "stepax.contrib.gauss_newton": 29,  # it reads three functions of the user
}


@every_function
def test_a_docstring_is_short(name):
    lines = len((inspect.getdoc(FUNCTIONS[name]) or "").splitlines())
    assert lines <= LONGER.get(name, LINES)


OPTIMIZERS = [name for name, row in ROWS.items() if row.kind == "optimizer"]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_help_of_an_optimizer_fits_on_one_screen(name):
    """With the signature as a paragraph: Python 3.13 shows an argument a line, and no
    docstring can make up for an optimizer of 26 arguments there."""
    f = ROWS[name].factory
    text = [f"{name}{inspect.signature(f)}", *(inspect.getdoc(f) or "").splitlines()]
    height = sum(max(1, math.ceil((4 + len(line)) / 88)) for line in text)
    longer = max(0, LONGER.get(f"stepax.contrib.{name}", LINES) - LINES)
    # Above it a title and a blank line; a line of the signature, and one of its own.
    assert height + 2 <= SCREEN + 2 * longer
