"""The result of a sweep: losses by point, the best point, a table, a plot."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .._engine.functions.calls import nearest
from .._engine.inspect.tables import Printable, Table
from .grid import Point, is_number, plain, shown


_RATES = ("learning_rate", "lr", "rate", "peak_value", "init_value")


@dataclass(frozen=True, repr=False, eq=False)
class SweepResult(Printable):
    """The losses of all runs of `sweep`.

    points: a dict from names to values for each point, in the order of the grid.
    losses: loss on each mini-batch before its step, a NumPy array (points, seeds,
        steps).
    seeds: the seeds, integers.
    rate: the name of the learning rate in the points; `None` if there is none.
    margin, bound, last: as given to `sweep`.
    """

    points: list[Point]
    losses: np.ndarray
    seeds: tuple[int, ...]
    rate: str | None
    margin: float
    bound: float
    last: int

    @property
    def final(self) -> np.ndarray:
        """The mean loss of the last steps, (points, seeds)."""
        with np.errstate(invalid="ignore", over="ignore"):
            return self.losses[..., -self.last :].mean(-1)

    @property
    def diverged(self) -> np.ndarray:
        """Whether a loss is not finite or above the bound, (points, seeds)."""
        is_low = np.isfinite(self.losses) & (self.losses <= self.bound)
        return np.logical_not(is_low.all(-1))

    @property
    def scores(self) -> np.ndarray:
        """`final` averaged over seeds, (points,); infinite if a seed has diverged."""
        return np.where(self.diverged.any(-1), np.inf, self.final.mean(-1))

    @property
    def best(self) -> Point | None:
        """The point with the lowest score; `None` if all diverged."""
        i = int(np.argmin(self.scores))
        return self.points[i] if np.isfinite(self.scores[i]) else None

    @property
    def suggestion(self) -> Point | None:
        """The point with the largest learning rate whose score is close to the best.

            score <= best + margin |best|

        Among equal learning rates the lowest score decides.  Without a learning rate it
        is `best`.
        """
        if self.best is None or self.rate is None:
            return self.best
        least = self.scores.min()
        near = np.flatnonzero(self.scores <= least + self.margin * abs(least))
        of = lambda i: self.points[i][self.rate]
        size = lambda i: of(i) if is_number(of(i)) else -math.inf
        return self.points[max(near, key=lambda i: (size(i), -self.scores[i]))]

    def select(self, **values: Any) -> "SweepResult":
        """The result for the points that have these values.

        Raises a `ValueError` if there are none.
        """
        for name in values.keys() - self.points[0].keys():
            raise ValueError(f"{_no_name(name, self.points[0])}")
        same = lambda point, k: plain(values[k]) == point[k]
        at = [i for i, p in enumerate(self.points) if all(same(p, k) for k in values)]
        if not at:
            raise ValueError(f"no point of the sweep has {shown(values)}")
        return replace(
            self, points=[self.points[i] for i in at], losses=self.losses[at]
        )

    def tables(self) -> list[Table]:
        names = list(self.points[0])
        spread = ["± over seeds"] if len(self.seeds) > 1 else []
        header = [*names, "loss", *spread, "diverged", ""]
        best, suggestion = self.best, self.suggestion
        rows = []
        for i, point in enumerate(self.points):
            kept = self.final[i][~self.diverged[i]]
            numbers = ["", ""]
            if kept.size:
                numbers = [f"{kept.mean():.4g}", f"{kept.std():.2g}"]
            bad = int(self.diverged[i].sum())
            marks = ["best"] * (point is best) + ["suggested"] * (point is suggestion)
            cells = [_cell(point[name]) for name in names]
            cells += numbers[: 1 + len(spread)]
            many = f"{bad} of {len(self.seeds)}" if bad else ""
            rows.append([*cells, many, ", ".join(marks)])
        return [(header, rows)]

    def table(self) -> str:
        """A line for each point: mean and spread of the final loss over seeds."""
        return str(self)

    def plot(self, path: Any, rate: str | None = None) -> None:
        """Plot the final loss against the learning rate, on logarithmic axes.

        There is a line for each combination of other values, and a band from the lowest
        to the highest of its seeds.  It needs matplotlib.

        path: the file to write; its suffix is the format.
        rate: the name on the horizontal axis; by default the learning rate.

        Raises a `ValueError` if the values are not positive numbers.
        """
        from .picture import draw

        if rate is not None and rate not in self.points[0]:
            raise ValueError(_no_name(rate, self.points[0]))
        draw(self, path, rate or self.rate)

    def to_dict(self) -> dict[str, Any]:
        """The result as lists and numbers for JSON.

        Numbers that are not finite are `None`; values that JSON does not have are given
        by their `repr`.
        """
        return {
            "points": [_json(p) for p in self.points],
            "seeds": list(self.seeds),
            "losses": _json(self.losses.tolist()),
            "final": _json(self.final.tolist()),
            "diverged": self.diverged.tolist(),
            "best": _json(self.best),
            "suggestion": _json(self.suggestion),
            "rate": self.rate,
            "margin": self.margin,
            "bound": _json(self.bound),
            "last": self.last,
        }


def _no_name(name, point):
    return f"the grid has no {name!r}{nearest(name, point) or f', only {list(point)}'}"


def rate_in(grid: dict[str, list]) -> str | None:
    """The name of the learning rate in a grid: a usual one, or the only number."""
    numeric = [name for name, found in grid.items() if any(map(is_number, found))]
    usual = [name for name in _RATES if name in numeric]
    return next(iter(usual), numeric[0] if len(numeric) == 1 else None)


def _cell(x: Any) -> str:
    return f"{x:.4g}" if isinstance(x, float) else str(x)


def _json(x: Any) -> Any:
    if isinstance(x, dict):
        return {str(k): _json(y) for k, y in x.items()}
    if isinstance(x, list | tuple):
        return list(map(_json, x))
    if isinstance(x, float):
        return x if math.isfinite(x) else None
    return x if x is None or isinstance(x, str | int) else repr(x)
