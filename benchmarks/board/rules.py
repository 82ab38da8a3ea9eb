"""The rules of the leaderboard, fixed before a run: what is tried, and how often.

A change here makes the rows that were run before stale, and the pages say so.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cache
from hashlib import sha256

import numpy as np
from scipy.stats import qmc


# Draws of the hyperparameters of each optimizer on each task, all of them run with the
# same seeds, so that they differ in nothing else; the loss of a draw is the geometric
# mean.  With one seed the best draw was often one that diverges with others.
DRAWS = 64
TUNING_SEEDS = (1, 2)
# The best draw is run again with these; no seed of the tuning is used again.
SEEDS = tuple(range(1000, 1040))
# Rates of the rate curve, evenly in logarithms over the whole range, and its seeds.
CURVE_RATES = 10
CURVE_SEEDS = (100, 101, 102, 103)

# Share of the steps over which the rate rises linearly; it then falls to 0 as a cosine.
WARM_UP = 0.05
# Validation losses that are kept of a run, evenly over its steps; the last one counts.
MARKS = 20

# The range of the rate is this factor, evenly about its usual value.
RATE_FACTOR = 1000.0
RANGES = {"one_minus_b1": (0.02, 0.3), "one_minus_b2": (0.002, 0.1)}
RANGES |= {"decay": (1e-3, 0.3)}

# The bar for "better" and "worse" than AdamW, after Holm's correction.
LEVEL = 0.001
REFERENCE = "adamw"
# A rate is in the span if its loss is at most this multiple of the curve's least one.
SPAN = 1.25
# A draw is close if its loss is at most this multiple of the best draw's.
CLOSE = 1.1
# A task is ranked if the span of the tuned losses is at least so many deviations.
APART = 3.0


@dataclass(frozen=True)
class Entry:
    """An optimizer of the board: how what is tuned becomes its arguments.

    usual: the middle of the range of its rate.
    b1, b2: the arguments that take the two decay rates; none if empty, and a pair if
        both are the same one.
    decay: the arguments that take the decay of the weights.
    fixed: other arguments.
    schedule: "cosine", or "constant" after the warm-up.
    rest: the optimizer of arrays that are not matrices; it takes the same rate,
        b2 and decay.
    """

    usual: float
    b1: str = "b1"
    b2: str = "b2"
    decay: tuple[str, ...] = ("weight_decay",)
    fixed: dict = field(default_factory=dict)
    schedule: str = "cosine"
    rest: str = ""

    @property
    def names(self) -> list[str]:
        """What is tuned."""
        both = {"one_minus_b1": self.b1, "one_minus_b2": self.b2 or self.rest}
        tuned = [name for name, argument in both.items() if argument]
        return ["rate", *tuned, "decay"]

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        half = RATE_FACTOR**0.5
        own = {"rate": (self.usual / half, self.usual * half)}
        return {name: (own | RANGES)[name] for name in self.names}


# The usual rates are those of networks of a few thousand numbers.  They were set after
# a pilot of three to eight draws, with seeds that are not used here; ranges are so wide
# that the best draw should not lie at an end, and the pages mark it if it does.
ENTRIES = {
    "adamw": Entry(1e-2),
    "sgd": Entry(0.2, b1="momentum", b2="", fixed={"nesterov": True}),
    "lion": Entry(1e-3),
    # Matrices go to Muon, other arrays to AdamW; with `consistent_rms` one rate is of
    # the same size for both.
    "muon": Entry(
        1e-2,
        b1="beta",
        b2="adam_b2",
        decay=("weight_decay", "adam_weight_decay"),
        fixed={"consistent_rms": 0.2},
    ),
    "normuon": Entry(1e-2, fixed={"shape_factor": "rms"}, rest="adamw"),
    "soap": Entry(1e-2),
    "psgd_kron": Entry(1e-2, b2=""),
    # Without grafting its steps have no scale that a rate could be usual for.
    "shampoo": Entry(1e-2, fixed={"grafting": "adam", "precondition_frequency": 10}),
    "schedule_free_adamw": Entry(3e-2, schedule="constant"),
    # The slow mean has to forget within the steps that there are.
    "ademamix": Entry(1e-2, fixed={"b3": 0.999}),
    "mars": Entry(1e-2),
    "adan": Entry(3e-2, b2="b3"),
    "prodigy": Entry(1.0, b1="betas", b2="betas"),
    "lamb": Entry(3e-2),
    # By default no axis of these small models would be long enough to be factored.
    "adafactor": Entry(0.1, b1="momentum", b2="", fixed={"min_dim_size_to_factor": 8}),
    "cautious_adamw": Entry(1e-2),
}


def draws(name: str) -> list[dict[str, float]]:
    """The hyperparameters to try: points of Sobol's sequence, scrambled, the same in
    each run; to four digits, so that a file holds what was run."""
    ranges = ENTRIES[name].ranges
    low, high = np.log(np.asarray(list(ranges.values()))).T
    points = np.exp(low + (high - low) * _unit(len(ranges)))
    return [dict(zip(ranges, map(_short, p), strict=True)) for p in points.tolist()]


@cache
def _unit(dimensions: int) -> np.ndarray:
    sequence = qmc.Sobol(dimensions, scramble=True, rng=np.random.default_rng(0))
    return sequence.random(DRAWS)


def curve_rates(name: str) -> list[float]:
    low, high = ENTRIES[name].ranges["rate"]
    return [_short(x) for x in np.geomspace(low, high, CURVE_RATES).tolist()]


def phases(name: str, best: dict[str, float] | None) -> Iterator[tuple[str, list]]:
    """The trials of each phase, pairs of hyperparameters and seed.

    best: the best draw, without which only the first phase is known.
    """
    yield "tuning", [(x, seed) for x in draws(name) for seed in TUNING_SEEDS]
    if best is not None:
        yield "seeds", [(best, seed) for seed in SEEDS]
        at = [best | {"rate": rate} for rate in curve_rates(name)]
        yield "curve", [(point, seed) for point in at for seed in CURVE_SEEDS]


def digest(name: str) -> str:
    """Of all rules that a row of this optimizer depends on."""
    values = {
        "draws": draws(name),
        "tuning": TUNING_SEEDS,
        "seeds": SEEDS,
        "curve": [curve_rates(name), CURVE_SEEDS],
        "schedule": [WARM_UP, MARKS],
        "entry": asdict(ENTRIES[name]),
    }
    return sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def _short(x: float) -> float:
    return float(f"{x:.4g}")
