"""Performance goals of Stepax, and whether a run meets them."""

from typing import NamedTuple

from .measure import IN_ONE, OURS, PRODUCTS
from .ratios import QUANTITIES


class Goal(NamedTuple):
    """A performance goal.

    asked: the largest acceptable value.
    case, shape: the case and the tree it applies to.
    key: what is compared, as in `QUANTITIES`; of absolute values, the key of the row.
    rival: the library relative to which it is a ratio; `None` for an absolute value.
    way: `update` and `apply_updates`, or our fused step.
    """

    asked: float
    case: str
    shape: str
    key: str
    rival: str | None = "optax"
    way: str = OURS


class Got(NamedTuple):
    """The value in a run, and its interval, which counts lack."""

    value: float
    low: float | None = None
    high: float | None = None


MADE, BYTES = "trace + lower", "bytes"
COPIES = "copies of these bytes"

GOALS = (
    Goal(0.5, "clip + adamw", "large", "step"),
    Goal(0.7, "lion", "large", "step"),
    Goal(0.75, "lion", "large", "step", way=IN_ONE),
    Goal(0, "lion", "large", "temporaries", None, IN_ONE),
    Goal(0.5, "lamb", "large", "step"),
    Goal(0.45, "lamb", "large", "step", way=IN_ONE),
    Goal(0.7, "adafactor", "large", "step"),
    Goal(0.7, "adafactor", "large", "step", way=IN_ONE),
    Goal(0.6, "zero_nans + adamw", "large", "step"),
    Goal(0.6, "zero_nans + adamw", "large", "step", way=IN_ONE),
    Goal(0.5, "apply_if_finite(adamw)", "large", "step"),
    Goal(0.3, "multi_steps(adamw, 4)", "large", "step"),
    Goal(0.22, "multi_steps(adamw, 4)", "large", "step", way=IN_ONE),
    Goal(12, "multi_steps(adamw, 4)", "large", "bytes of a waiting call", None, IN_ONE),
    Goal(1.0, "schedule_free_adamw", "large", "step", way=IN_ONE),
    Goal(52, "schedule_free_adamw", "large", BYTES, None, IN_ONE),
    Goal(1.0, "prodigy", "large", "step", way=IN_ONE),
    Goal(1.0, "adamw", "large", "step"),
    Goal(1.3, "adamw", "large", "step", "torch fused"),
    Goal(1.1, "clip + adamw", "large", "step", "torch fused"),
    Goal(0.25, "clip + adamw", "small", MADE),
    Goal(0.22, "clip + adamw", "small", MADE, way=IN_ONE),
    Goal(0.5, "clip + adamw", "small", "compile"),
    Goal(0.5, "clip + adamw", "small", "compile", way=IN_ONE),
    Goal(0.7, "clip + adamw", "small", "step"),
    Goal(0.7, "clip + adamw", "small", "step", way=IN_ONE),
    Goal(0.15, "clip + adamw", "small", "un-jitted"),
    Goal(0.08, "clip + adamw", "small", "un-jitted", way=IN_ONE),
    Goal(0.3, "clip + adamw", "many", "compile"),
    Goal(0.4, "clip + adamw", "many", "compile", way=IN_ONE),
    Goal(0.2, "adamw, packed", "small", "step"),
    Goal(0.5, "adamw, packed", "small", "compile", None),
    Goal(0.6, "muon", "vit", "step"),
    Goal(0.45, "muon", "vit", "step", way=IN_ONE),
    Goal(1.25, "muon", "vit", "step", PRODUCTS, IN_ONE),
    Goal(2, "soap", "gpt256", "longest to median call", None, IN_ONE),
    Goal(2, "soap, staggered", "gpt256", "longest to median call", None, IN_ONE),
    Goal(40, "adamw", "large", BYTES, None),
    Goal(44, "clip + adamw", "large", BYTES, None),
    Goal(36, "lion", "large", BYTES, None),
    Goal(44, "zero_nans + adamw", "large", BYTES, None),
    Goal(44, "apply_if_finite(adamw)", "large", BYTES, None),
    Goal(16, "clip + scheduled adamw, mask", "small", "lines per array", None),
    # On a GPU: 85 % of the rate of a copy, as the time of a step to that of a copy.
    *(
        goal
        for case in ("adamw", "clip + adamw")
        for goal in (
            Goal(round(1 / 0.85, 2), case, "gpt1b", COPIES, None, IN_ONE),
            Goal(1.0, case, "gpt1b", "step", "torch fused", IN_ONE),
            Goal(0.9, case, "gpt1b", "step", way=IN_ONE),
        )
    ),
)


def named(goal: Goal) -> tuple[str, str, str]:
    """A goal in words: the case and key, the tree, and the library to compare with."""
    way = ", fused" if goal.way == IN_ONE else ""
    return f"{goal.case}{way}: {goal.key}", goal.shape, goal.rival or ""


def got(goal: Goal, rows: list[dict]) -> Got | None:
    """The result in a run; `None` if it was not measured."""
    at = {(row["shape"], row["case"], row["library"]): row for row in rows}
    row = at.get((goal.shape, goal.case, goal.way), {})
    if goal.rival is not None:
        ratio = row.get("ratios", {}).get(goal.rival, {}).get(goal.key)
        return None if ratio is None else Got(*ratio)
    keys = QUANTITIES.get(goal.key, (goal.key,))
    return Got(sum(row[key] for key in keys)) if set(keys) <= set(row) else None


def is_met(goal: Goal, result: Got) -> bool:
    """Whether the limit is kept.

    Values are compared as they are shown: a few scalars do not amount to an array.
    """
    return round(result.value, digits(goal)) <= goal.asked


def digits(goal: Goal) -> int:
    """The digits after the point that matter: none of counts of bytes and lines."""
    is_count = goal.rival is None and goal.key in (BYTES, "temporaries")
    is_count |= goal.key in ("bytes of a waiting call", "lines per array")
    return 0 if is_count else 2
