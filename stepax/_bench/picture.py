"""A bar chart of the ratios to Optax, with the goals."""

from pathlib import Path

from .goals import GOALS, total


def draw(rows: list[dict], title: str, path: Path) -> None:
    """Write a PNG with a panel for each measured tree."""
    # Without pyplot, which would look for a window system.
    from matplotlib.figure import Figure

    ratios = step_ratios(rows)
    sizes = [len(found) for found in ratios.values()]
    figure = Figure(figsize=(9, 1.6 + 0.28 * sum(sizes) + 0.5 * len(sizes)), dpi=110)
    panels = figure.subplots(
        len(sizes), squeeze=False, sharex=True, height_ratios=sizes
    )
    for axes, (shape, found) in zip(panels[:, 0], ratios.items(), strict=True):
        _panel(axes, shape, found)
    panels[-1, 0].set_xlabel("time of a step, Optax = 1; the mark is the goal")
    figure.suptitle(title)
    figure.set_layout_engine("constrained")
    figure.savefig(path, format="png")


def step_ratios(rows: list[dict]) -> dict[str, dict[str, float]]:
    """The ratio of our step time to Optax's, by shape and case, if both exist."""
    at = {(row["shape"], row["case"], row["library"]): row for row in rows}
    found: dict[str, dict[str, float]] = {}
    for (shape, case, library), row in at.items():
        other = at.get((shape, case, "optax"), {})
        ratio = total(row, ("step",)) / total(other, ("step",))
        if library == "stepax" and ratio == ratio:
            found.setdefault(shape, {})[case] = ratio
    return found


def _panel(axes, shape, found):
    names = list(found)
    axes.barh(names, list(found.values()), color="C0", height=0.6)
    axes.axvline(1.0, color="gray", linewidth=1)
    for goal in GOALS:
        if (goal.shape, goal.rival, goal.key) == (shape, "optax", ("step",)):
            if goal.case in found:
                y = names.index(goal.case)
                axes.plot([goal.asked] * 2, [y - 0.4, y + 0.4], color="C3", linewidth=3)
    for y, ratio in enumerate(found.values()):
        axes.text(ratio + 0.01, y, f"{ratio:.2f}", va="center", fontsize=8)
    axes.invert_yaxis()
    axes.set_ylabel(shape)
    axes.margins(x=0.08)
