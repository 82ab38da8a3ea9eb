"""The plot of a sweep: loss against learning rate."""

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from .._figure import new_figure
from .grid import is_number, shown


if TYPE_CHECKING:
    from .result import SweepResult


def draw(result: "SweepResult", path: Any, rate: str | None) -> None:
    """Write a plot with a line for each combination of the other values."""
    _require_rate(result, rate)
    figure = new_figure("plot")
    axes = figure.subplots()
    lines = _lines(result, rate)
    colors = itertools.cycle(f"C{i}" for i in range(10))
    for (label, rows), color in zip(lines.items(), colors, strict=False):
        _line(axes, result, rate, sorted(rows), label, color)
    values = result.final[~result.diverged]
    scale = "log" if values.size and (values > 0).all() else "linear"
    axes.set(xlabel=rate, ylabel="final loss", xscale="log", yscale=scale)
    axes.grid(alpha=0.3)
    if any(lines) and values.size:
        axes.legend()
    figure.savefig(path)


def _require_rate(result, rate):
    if rate is None:
        raise ValueError(
            "`plot` needs a learning rate for its horizontal axis: pass its name in "
            f"the grid as `rate`; the grid has {list(result.points[0])}"
        )
    for point in result.points:
        x = point[rate]
        if not is_number(x) or not x > 0:
            raise ValueError(
                f"`plot` needs positive numbers for {rate!r}, whose axis is "
                f"logarithmic, but has {x!r}; pass another name as `rate`, or exclude "
                "these points with `select`"
            )


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
