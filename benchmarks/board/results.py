"""What the rows say: the numbers of which the pages are made."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from . import rules, statistics, store, tasks


ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Result:
    """A complete row.

    stale: what has changed since it was run; such rows are compared with none.
    """

    row: dict
    stale: tuple[str, ...] = ()

    @cached_property
    def name(self) -> str:
        return self.row["optimizer"]

    @cached_property
    def curves(self) -> np.ndarray:
        return np.asarray(self.row["seeds"])

    @cached_property
    def losses(self) -> np.ndarray:
        return self.curves[:, -1]

    @cached_property
    def mean(self) -> float:
        """The geometric mean, by which optimizers are compared."""
        return float(np.exp(np.log(self.losses).mean()))

    @cached_property
    def deviation(self) -> float:
        """Of the logarithms of the losses."""
        return float(np.log(self.losses).std(ddof=1))

    @cached_property
    def diverged(self) -> int:
        return int((self.losses >= self.row["worst"]).sum())

    @cached_property
    def tuned(self) -> np.ndarray:
        return store.tuned(self.row)

    @cached_property
    def point(self) -> dict[str, float]:
        found = store.best_of(self.row)
        assert found is not None, "a complete row has a best draw"
        return found

    @cached_property
    def close(self) -> int:
        return int((self.tuned <= rules.CLOSE * self.tuned.min()).sum())

    @cached_property
    def curve(self) -> np.ndarray:
        """(rates, seeds)."""
        return np.reshape(self.row["curve"], (len(self.row["curve_rates"]), -1))

    @cached_property
    def _curve_means(self) -> list[float]:
        return np.exp(np.log(self.curve).mean(1)).tolist()

    @cached_property
    def span(self) -> tuple[float, float, bool, bool]:
        return statistics.span(self.row["curve_rates"], self._curve_means, rules.SPAN)

    @cached_property
    def middle_rate(self) -> float:
        """The middle of the span, in logarithms: the lowest point of a flat curve is
        anywhere."""
        low, high, *_ = self.span
        return (low * high) ** 0.5

    @cached_property
    def is_at_end(self) -> bool:
        """Whether the tuned rate is in the outer twentieth of its range."""
        low, high = np.log(self.row["curve_rates"][:: len(self._curve_means) - 1])
        place = (np.log(self.point["rate"]) - low) / (high - low)
        return not 0.05 <= place <= 0.95

    @cached_property
    def bytes_per_number(self) -> float:
        return self.row["state_bytes"] / self.row["parameters"]

    def expected(self, k: int) -> float:
        return statistics.expected_best(self.tuned.tolist(), k)


@dataclass(frozen=True)
class Comparison:
    """Of an optimizer with the reference: p is after Holm's correction."""

    ratio: float
    p: float
    verdict: str
    share: float
    reached: int


@dataclass(frozen=True)
class TaskResults:
    """The rows of a task.

    results: the complete ones.
    partial: optimizers whose rows are not.
    seconds: a step's, and its ratio to the reference's, where it was measured.
    """

    name: str
    results: dict[str, Result]
    partial: tuple[str, ...]
    seconds: dict[str, dict[str, float]]

    @cached_property
    def fresh(self) -> dict[str, Result]:
        """Those that may be compared: not stale, and on the reference's data."""
        reference = self.results.get(rules.REFERENCE)
        if reference is None or reference.stale:
            return {}
        data = reference.row["data"]
        same = lambda r: not r.stale and r.row["data"] == data
        return {name: r for name, r in self.results.items() if same(r)}

    @property
    def is_complete(self) -> bool:
        return not self.partial and bool(self.fresh)

    @cached_property
    def apart(self) -> float:
        """The span of the tuned losses, in deviations of the seeds, of logarithms."""
        means = [np.log(r.mean) for r in self.fresh.values()]
        return float(
            np.ptp(means) / np.median([r.deviation for r in self.fresh.values()])
        )

    @property
    def is_ranked(self) -> bool:
        return self.is_complete and self.apart >= rules.APART

    @cached_property
    def comparisons(self) -> dict[str, Comparison]:
        """Of all but the reference, by which Holm's correction counts."""
        if not self.is_complete:
            return {}
        reference = self.fresh[rules.REFERENCE]
        others = [x for x in self.fresh if x != rules.REFERENCE]
        found = [
            statistics.paired(self.fresh[x].losses, reference.losses) for x in others
        ]
        ways = [statistics.holm([x[i] for x in found]) for i in (1, 2)]
        target = float(np.median(reference.losses))
        compared = {}
        for name, (ratio, *_), lower, higher in zip(others, found, *ways, strict=True):
            until = statistics.share_until(self.fresh[name].curves, target)
            p = min(lower, higher)
            verdict = _verdict(lower, higher)
            compared[name] = Comparison(ratio, p, verdict, *until)
        return compared

    def ratio(self, name: str) -> float:
        """Of the geometric means, to the reference's."""
        return self.fresh[name].mean / self.fresh[rules.REFERENCE].mean


def _verdict(lower, higher):
    if lower < rules.LEVEL:
        return "better"
    return "worse" if higher < rules.LEVEL else "no difference shown"


def read(
    folder: Path = ROOT / store.FOLDER, probes: dict[str, list[float]] | None = None
) -> dict[str, TaskResults]:
    """All tasks of a folder of rows.

    probes: of the optimizers as they are, without which a change of them is not seen.
    """
    return {of: _task(store.Rows(folder), of, probes) for of in tasks.NAMES}


def _task(rows, of, probes):
    found = {name: rows.read(of, name) for name in rules.ENTRIES}
    done = {name: row for name, row in found.items() if store.is_complete(row)}
    results = {
        k: Result(row, tuple(store.stale(row, probes))) for k, row in done.items()
    }
    path = rows.folder / "time" / f"{of}.json"
    seconds = json.loads(path.read_text())["optimizers"] if path.exists() else {}
    return TaskResults(of, results, tuple(x for x in found if x not in done), seconds)


def numbers_to_start_with(
    name: str, folder: Path = ROOT / store.FOLDER
) -> dict[str, dict]:
    """For each task with a row: the tuned point, and the span of rates around it.

    "rate", "low" and "high" are the tuned rate and the ends of the span of rates whose
    loss is at most 1.25 of the best; "at_least" tells whether the span may be longer;
    "point" has all that was tuned.  Empty for an optimizer without rows.
    """
    found = {}
    for of in tasks.NAMES if name in rules.ENTRIES else ():
        result = _task(store.Rows(folder), of, None).results.get(name)
        if result is not None and not result.stale:
            low, high, *is_open = result.span
            rate = result.point["rate"]
            found[of] = {"rate": rate, "low": low, "high": high}
            found[of] |= {"at_least": any(is_open), "point": result.point}
    return found
