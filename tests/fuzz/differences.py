"""What a difference from Optax is, and when it explains a finding."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from fuzz.beside import Finding
from fuzz.runs import Program


When = Callable[[Program, Finding], bool]


@dataclass(frozen=True)
class Difference:
    """A difference that stays.

    kind: that of the findings that it explains, as a pattern.
    when: whether it explains this one.
    """

    reason: str
    kind: str
    when: When
    example: Program

    def explains(self, program: Program, finding: Finding) -> bool:
        return bool(re.fullmatch(self.kind, finding.kind)) and (
            self.when(program, finding)
        )


def uses(*names: str) -> When:
    """Whether the program calls one of these."""
    calls = re.compile(rf"\b({'|'.join(names)})\b")
    return lambda program, finding: bool(calls.search(program.tx))


def says(pattern: str) -> When:
    """Whether the finding's text has this in it."""
    return lambda program, finding: bool(re.search(pattern, finding.text))


def both(*conditions: When) -> When:
    return lambda *case: all(x(*case) for x in conditions)


def below(size: float) -> When:
    """Whether numbers differ by less than this."""
    return lambda program, finding: finding.size < size


def is_complex(program: Program, finding: Finding) -> bool:
    return "complex" in program.params
