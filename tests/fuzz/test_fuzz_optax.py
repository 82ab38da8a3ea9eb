"""Random programs do what they do in Optax, but for what is documented.

`make fuzz` runs thousands.  A failure shows the smallest program found, as a script.
"""

import jax
import pytest

from fuzz.beside import find, find_in_scan
from fuzz.documented import DIFFERENCES
from fuzz.examples import fuzz, parts
from fuzz.programs import programs
from fuzz.runs import (
    Program,
    run_optax,
    run_optax_by_operations,
    run_ours,
    run_ours_by_operations,
)


@pytest.fixture(autouse=True)
def wide(x64):
    """Differences of rounding are small in float64, and other ones show."""


def findings(program):
    """All that differs from Optax."""
    ours, theirs = run_ours(program), run_optax(program)
    found = list(find(program, ours, theirs))
    if program.also == "scan" and not ours.error:
        found += find_in_scan(program)
    if program.also in ("eager", "numpy", "migrated"):
        # What is single is rounded otherwise by NumPy, in either library.
        is_eager = program.also == "eager"
        carry = "" if is_eager else program.also
        again = run_ours_by_operations(program, is_eager, carry)
        theirs = run_optax_by_operations(program)
        found += find(program, again, theirs, run_optax_by_operations)
    return found


def check(program):
    found = [
        f"{x.kind}: {x.text}"
        for x in findings(program)
        if not any(d.explains(program, x) for d in DIFFERENCES)
    ]
    assert not found, "\n".join([*found, program.also, program.script()])


@pytest.mark.slow
@parts
def test_programs_do_what_they_do_in_optax(part):
    fuzz(check, part, program=programs())


@pytest.mark.slow
@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda d: d.reason)
def test_documented_differences_are_there(difference):
    program = difference.example
    assert any(difference.explains(program, x) for x in findings(program))


def test_the_script_of_a_failure_runs():
    program = Program("{'w': a((2, 3), 'float64', 0)}", "o.sgd(0.1)")
    told = []
    try:
        exec(program.script(), {"print": lambda *x: told.append(x[0])})
    finally:  # what the script sets, it sets for good
        jax.config.update("jax_enable_x64", False)
    assert told == ["optax", *range(5), "stepax", *range(5)]
