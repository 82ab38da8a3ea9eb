"""The result of a sweep: losses by point, the best point, a table, a plot."""

import itertools
import math
import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .._engine.functions.calls import nearest
from .._engine.inspect import Printable, Table
from .._schedules.picture import new_figure
from . import Point, is_number, plain, shown
from .fit import SweepFit, fitted


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
        rates = [point[self.rate] for point in self.points]
        sizes = [x if is_number(x) else -math.inf for x in rates]
        return self.points[max(near, key=lambda i: (sizes[i], -self.scores[i]))]

    def select(self, **values: Any) -> "SweepResult":
        """The result for the points that have these values.

        Raises a `ValueError` if there are none.
        """
        for name in values.keys() - self.points[0].keys():
            raise ValueError(f"{_no_name(name, self.points[0])}")
        wanted = {k: plain(x) for k, x in values.items()}
        at = [
            i
            for i, point in enumerate(self.points)
            if all(x == point[k] for k, x in wanted.items())
        ]
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
            values = [point[name] for name in names]
            cells = [f"{x:.4g}" if isinstance(x, float) else f"{x}" for x in values]
            cells += numbers[: 1 + len(spread)]
            many = f"{bad} of {len(self.seeds)}" if bad else ""
            rows.append([*cells, many, ", ".join(marks)])
        return [(header, rows)]

    def table(self) -> str:
        """A line for each point: mean and spread of the final loss over seeds."""
        return str(self)

    def plot(self, path: str | os.PathLike[str], rate: str | None = None) -> None:
        """Plot the final loss against the learning rate, on logarithmic axes.

        There is a line for each combination of other values, and a band from the lowest
        to the highest of its seeds.  It needs matplotlib.

        path: the file to write; its suffix is the format.
        rate: the name on the horizontal axis; by default the learning rate.

        Raises a `ValueError` if the values are not positive numbers.
        """
        rate = self.rate if rate is None else rate
        _require_rate(self, rate)
        figure = new_figure("plot")
        axes = figure.subplots()
        lines = _lines(self, rate)
        colors = itertools.cycle(f"C{i}" for i in range(10))
        for (label, rows), color in zip(lines.items(), colors, strict=False):
            _line(axes, self, rate, sorted(rows), label, color)
        values = self.final[~self.diverged]
        scale = "log" if values.size and (values > 0).all() else "linear"
        axes.set(xlabel=rate, ylabel="final loss", xscale="log", yscale=scale)
        axes.grid(alpha=0.3)
        if any(lines) and values.size:
            axes.legend()
        figure.savefig(path)

    def fit(self, name: str | None = None) -> SweepFit:
        """The best learning rate with its 95 % interval.

            loss(rate, seed) = a_seed + b x + c x^2 + noise,    x = log(rate)

        or its logarithm, whichever is closer to such a parabola.  Rates with a run that
        diverged are left out, and so are the farthest from the best while the seeds
        show that the parabola does not fit.  Its minimum, -b / (2 c), has the interval
        of Fieller's theorem, whose noise is that of the residuals.

        name: the learning rate in the grid; by default that of the sweep.

        Raises a `ValueError` if other values of the grid differ between points, too, if
        a rate is not a positive number, or if there are too few rates.
        """
        name = self.rate if name is None else name
        column = _require_rate(self, name, "fit", "`name`")
        others = {k: _values(self.points, k) for k in self.points[0] if k != name}
        if several := [k for k, found in others.items() if len(found) > 1]:
            example = f"{several[0]}={others[several[0]][0]}"
            raise ValueError(
                f"`fit` needs one value of everything but {name!r}, but {several} "
                f"differ between points: choose with `select({example}).fit()`"
            )
        rates = np.asarray(column, float)
        order = np.argsort(rates)
        kept = order[~self.diverged[order].any(1)]
        return fitted(f"{name}", rates[kept], self.final[kept].astype(float))

    def to_dict(self) -> dict[str, Any]:
        """The result as lists and numbers for JSON.

        Numbers that are not finite are `None`; values that JSON does not have are given
        by their `repr`.
        """
        data = "points seeds losses final diverged best suggestion rate"
        names = f"{data} margin bound last".split()
        return {name: _json(getattr(self, name)) for name in names}


def _no_name(name, point):
    return f"the grid has no {name!r}{nearest(name, point) or f', only {list(point)}'}"


def _values(points, name):
    """The values of one name, each once; not all of them are hashable."""
    found = []
    for point in points:
        if not any(point[name] == x for x in found):
            found.append(point[name])
    return found


def rate_in(grid: dict[str, list]) -> str | None:
    """The name of the learning rate in a grid: a usual one, or the only number."""
    numeric = [name for name, found in grid.items() if any(map(is_number, found))]
    usual = [name for name in _RATES if name in numeric]
    return next(iter(usual), numeric[0] if len(numeric) == 1 else None)


def _json(x: Any) -> Any:
    x = x.tolist() if isinstance(x, np.ndarray) else x
    if isinstance(x, dict):
        return {str(k): _json(y) for k, y in x.items()}
    if isinstance(x, list | tuple):
        return list(map(_json, x))
    if isinstance(x, float):
        return x if math.isfinite(x) else None
    return x if x is None or isinstance(x, str | int) else repr(x)


def _require_rate(result, rate, asked_by="plot", argument="`rate`"):
    if rate is None:
        raise ValueError(
            f"`{asked_by}` needs a learning rate: pass its name in the grid as "
            f"{argument}; the grid has {list(result.points[0])}"
        )
    if rate not in result.points[0]:
        raise ValueError(_no_name(rate, result.points[0]))
    for point in result.points:
        x = point[rate]
        if not is_number(x) or not x > 0:
            raise ValueError(
                f"`{asked_by}` needs positive numbers for {rate!r}, whose axis is "
                f"logarithmic, but has {x!r}; pass another name as {argument}, or "
                "exclude these points with `select`"
            )
    return [point[rate] for point in result.points]


def _lines(result, rate):
    """For each combination of other values, pairs of a learning rate and its index."""
    found: dict[str, list] = {}
    for i, point in enumerate(result.points):
        label = shown({k: x for k, x in point.items() if k != rate})
        found.setdefault(label, []).append((point[rate], i))
    return found


def _line(axes, result, rate, rows, label, color):
    rates = np.asarray([x for x, _ in rows])
    at = [i for _, i in rows]
    # Runs that diverged are not on the axis; a mark at its lower end shows the learning
    # rate.
    final = np.ma.masked_array(result.final[at], result.diverged[at])
    mean, low, high = final.mean(1), final.min(1), final.max(1)
    axes.plot(rates, mean, color=color, marker=".", label=label or None)
    axes.fill_between(rates, low, high, color=color, alpha=0.2, linewidth=0)
    bad = rates[result.diverged[at].any(1)]
    where = axes.get_xaxis_transform()
    axes.plot(bad, np.full(len(bad), 0.02), "x", color=color, transform=where)
    for point, marker in ((result.best, "o"), (result.suggestion, "s")):
        for x, i in rows:
            if result.points[i] is point:
                y = final[at.index(i)].mean()
                style = {"markersize": 9, "fillstyle": "none", "color": color}
                axes.plot([x], [y], marker, **style)
