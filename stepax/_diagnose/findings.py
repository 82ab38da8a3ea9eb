"""What rules find, and what `diagnose` returns: findings, which print as a table."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

from .._engine.inspect import Printable, Table
from .._engine.trees.errors import list_some


Severity = Literal["error", "warning", "note"]
SEVERITIES = get_args(Severity)


class Problem(NamedTuple):
    """What a rule finds.

    message: what is wrong, and what it does.
    paths: the parameters concerned; `None` for those that the rule was called for.
    cure: what to write instead, if it differs from that of the rule.
    """

    message: str
    paths: tuple[str, ...] | None = None
    cure: str = ""


# What a rule yields: a message, or a problem with paths or a cure of its own.
Found = Iterator[str | Problem]


@dataclass(frozen=True)
class Finding:
    """One mistake that `diagnose` found.

    code: its name, such as "rate-twice".
    severity: "error" if it cannot work as written, "warning" if it is hardly meant,
        "note" if it is worth a thought.
    message: what is wrong, and what it does.
    paths: the parameters concerned, or the transformation in the chain if there are
        none.
    cure: what to write instead.
    """

    code: str
    severity: Severity
    message: str
    paths: tuple[str, ...]
    cure: str

    @property
    def link(self) -> str:
        """Where the code is explained."""
        return f"docs/mistakes.md#{self.code}"


class Diagnosis(Printable, tuple[Finding, ...]):
    """The findings of `diagnose`: errors first, then warnings, then notes.

    It is true if there are any, and prints as a table.
    """

    def __init__(self, findings: Iterable[Finding] = ()) -> None:
        super().__init__()  # a tuple is made by `__new__`; this names the argument

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of the findings."""
        return tuple(finding.code for finding in self)

    @property
    def alarms(self) -> "Diagnosis":
        """The errors and warnings, without notes."""
        return Diagnosis(x for x in self if x.severity != "note")

    def require(self) -> None:
        """Raise a `ValueError` that lists errors and warnings, if there are any."""
        lines = [
            f"  {x.severity} `{x.code}` at {list_some(x.paths)}: {x.message}: {x.cure}"
            for x in self.alarms
        ]
        if lines:
            raise ValueError("\n".join(["`diagnose` found mistakes:", *lines]))

    def tables(self) -> list[Table]:
        """The table that is printed."""
        header = ["severity", "code", "at", "what", "cure"]
        rows = [
            [x.severity, x.code, list_some(x.paths, 3), x.message, x.cure] for x in self
        ]
        return [(header, rows)] if rows else []

    def __str__(self) -> str:
        return super().__str__() or "nothing found"

    __repr__ = __str__


def collected(findings: Iterable[Finding]) -> Diagnosis:
    """The findings by severity; equal ones with the paths of all."""
    merged: dict[Finding, dict[str, None]] = {}  # a set of paths, in their order
    for x in findings:
        merged.setdefault(replace(x, paths=()), {}).update(dict.fromkeys(x.paths))
    rows = (replace(x, paths=tuple(paths)) for x, paths in merged.items())
    return Diagnosis(sorted(rows, key=lambda x: SEVERITIES.index(x.severity)))
