"""Ratios of two libraries, round by round, and how well their median is known.

Libraries take turns within a round, so that what slows the machine slows all of them,
and the ratio of a round is less disturbed than its times.
"""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple


# What is compared, and the recorded times that are added up for it.
QUANTITIES = {
    "step": ("step",),
    "trace + lower": ("trace", "lower"),
    "compile": ("compile",),
    "un-jitted": ("un-jitted",),
    "init": ("init",),
}
COVERAGE = 0.95
Rounds = dict[str, list[float]]


class Ratio(NamedTuple):
    """The median of the ratios of all rounds, and the interval around it.

    The interval covers the median with at least 95 %, whatever the distribution; it is
    infinite for fewer than six rounds.
    """

    median: float
    low: float
    high: float

    def is_known(self, width: float) -> bool:
        """Whether the interval is narrower than this fraction of the median."""
        return self.high - self.low < width * self.median


def ratio(ours: Rounds, theirs: Rounds, quantity: str) -> Ratio | None:
    """The ratio of a quantity; `None` if one of them has not measured it.

    Where one library has stopped earlier, its rounds are the first of the other.
    """
    keys = QUANTITIES[quantity]
    if not all(key in rounds for rounds in (ours, theirs) for key in keys):
        return None
    sums = (
        [sum(x) for x in zip(*map(r.get, keys), strict=True)] for r in (ours, theirs)
    )
    found = sorted(x / y for x, y in zip(*sums, strict=False))
    cut = outside(len(found))
    ends = (found[cut], found[-1 - cut]) if cut is not None else (0.0, math.inf)
    return Ratio(statistics.median(found), *ends)


def outside(n: int) -> int | None:
    """How many of n sorted values may be left out at each end.

    The median is below the k-th of them with probability

        P(B < k),   B of a binomial distribution of n and 1/2.

    `None` if even the first and the last do not suffice.
    """
    left_out, below = None, 0.0
    for k in range(n // 2):
        below += math.comb(n, k) / 2**n
        if 2 * below > 1 - COVERAGE:
            break
        left_out = k
    return left_out


def all_ratios(ours: Rounds, others: dict[str, Rounds]) -> dict[str, dict]:
    """By library and quantity: the ratios, as lists of four digits for a file."""
    found: dict[str, dict] = {}
    for name, theirs in others.items():
        for quantity in QUANTITIES:
            each = ratio(ours, theirs, quantity)
            if each is not None:
                found.setdefault(name, {})[quantity] = rounded(each)
    return found


def rounded(values: Sequence[float], digits: int = 4) -> list[float | None]:
    """Numbers of so many digits; `None` for infinite ones, which JSON lacks."""
    return [float(f"{x:.{digits}g}") if math.isfinite(x) else None for x in values]
