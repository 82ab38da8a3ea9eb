"""Performance goals of Stepax, and whether a run meets them."""

import math
from typing import NamedTuple


class Goal(NamedTuple):
    """A performance goal.

    asked: the largest acceptable value.
    case, shape: the case and the tree it applies to.
    key: the key of the row, or several to add up.
    rival: the library relative to which it is a ratio; `None` for an absolute value.
    """

    asked: float
    case: str
    shape: str
    key: tuple[str, ...]
    rival: str | None = "optax"


STEP, MADE = ("step",), ("trace", "lower")
COMPILE, EAGER, BYTES = ("compile",), ("un-jitted",), ("bytes",)

GOALS = (
    Goal(0.5, "clip + adamw", "large", STEP),
    Goal(0.7, "lion", "large", STEP),
    Goal(0.5, "lamb", "large", STEP),
    Goal(0.7, "adafactor", "large", STEP),
    Goal(0.6, "zero_nans + adamw", "large", STEP),
    Goal(0.5, "apply_if_finite(adamw)", "large", STEP),
    Goal(0.3, "multi_steps(adamw, 4)", "large", STEP),
    Goal(1.0, "adamw", "large", STEP),
    Goal(1.3, "adamw", "large", STEP, "torch fused"),
    Goal(1.1, "clip + adamw", "large", STEP, "torch fused"),
    Goal(0.25, "clip + adamw", "small", MADE),
    Goal(0.5, "clip + adamw", "small", COMPILE),
    Goal(0.7, "clip + adamw", "small", STEP),
    Goal(0.15, "clip + adamw", "small", EAGER),
    Goal(0.3, "clip + adamw", "many", COMPILE),
    Goal(0.2, "adamw, packed", "small", STEP),
    Goal(0.5, "adamw, packed", "small", COMPILE, None),
    Goal(0.6, "muon", "vit", STEP),
    Goal(40, "adamw", "large", BYTES, None),
    Goal(44, "clip + adamw", "large", BYTES, None),
    Goal(36, "lion", "large", BYTES, None),
    Goal(44, "zero_nans + adamw", "large", BYTES, None),
    Goal(44, "apply_if_finite(adamw)", "large", BYTES, None),
    Goal(16, "clip + scheduled adamw, mask", "small", ("lines per array",), None),
)


def named(goal: Goal) -> tuple[str, str, str]:
    """A goal in words: the case and key, the tree, and the library to compare with."""
    return f"{goal.case}: {' + '.join(goal.key)}", goal.shape, goal.rival or ""


def total(row: dict, keys: tuple[str, ...]) -> float:
    """The sum of some values of a row; NaN if one is missing."""
    return sum(row.get(key, math.nan) for key in keys)


def got(goal: Goal, rows: list[dict]) -> float | None:
    """The value in a run; `None` if it was not measured."""
    at = {(row["shape"], row["case"], row["library"]): row for row in rows}
    ours = total(at.get((goal.shape, goal.case, "stepax"), {}), goal.key)
    if goal.rival is None:
        theirs = 1.0
    else:
        theirs = total(at.get((goal.shape, goal.case, goal.rival), {}), goal.key)
    value = ours / theirs
    return None if math.isnan(value) else value
