"""A bar chart of the ratios to Optax."""

import json
from pathlib import Path

from .measure import IN_ONE, OURS, WAYS


# Those of the other pictures of the site.
COLORS = {OURS: "#5b6ee1", IN_ONE: "#d1495b"}
NAMES = {OURS: "two calls", IN_ONE: "stepax.step"}
HEIGHT = 0.4


def draw(rows: list[dict], title: str, path: Path) -> None:
    """Write a PNG with a panel for each measured tree, and its ratios in a comment."""
    # Without pyplot, which would look for a window system.
    from matplotlib.figure import Figure

    ratios = step_ratios(rows)
    sizes = [len(found) for found in ratios.values()]
    figure = Figure(figsize=(9, 1.9 + 0.36 * sum(sizes) + 0.5 * len(sizes)), dpi=110)
    panels = figure.subplots(
        len(sizes), squeeze=False, sharex=True, height_ratios=sizes
    )
    for axes, (shape, found) in zip(panels[:, 0], ratios.items(), strict=True):
        _panel(axes, shape, found)
    _legend(figure)
    panels[-1, 0].set_xlabel("time of a step, Optax = 1")
    figure.suptitle(title, x=0.01, ha="left")
    figure.set_layout_engine("constrained")
    figure.savefig(path, format="png", metadata={"Comment": drawn(rows)})


def step_ratios(rows: list[dict]) -> dict[str, dict[str, dict[str, float]]]:
    """The ratios of our step times to Optax's, by shape, case and way."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for row in rows:
        ratio = row.get("ratios", {}).get("optax", {}).get("step")
        if row["library"] in WAYS and ratio is not None:
            cases = found.setdefault(row["shape"], {})
            cases.setdefault(row["case"], {})[row["library"]] = ratio[0]
    return found


def drawn(rows: list[dict]) -> str:
    """What a picture of these rows shows, as text."""
    return json.dumps(step_ratios(rows))


def _legend(figure):
    from matplotlib.patches import Patch

    patches = [Patch(color=COLORS[way], label=NAMES[way]) for way in WAYS]
    figure.legend(handles=patches, loc="outside upper right", ncols=2, frameon=False)


def _panel(axes, shape, found):
    names = list(found)
    for middle, case in enumerate(names):
        for way, ratio in found[case].items():
            y = middle + (WAYS.index(way) - 0.5) * HEIGHT
            axes.barh(y, ratio, color=COLORS[way], height=HEIGHT)
            axes.text(ratio + 0.01, y, f"{ratio:.2f}", va="center", fontsize=7)
    axes.axvline(1.0, color="#808080", linewidth=1)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_title(shape, loc="left", fontsize="medium")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color="#e6e6e6")
    axes.set_axisbelow(True)
    axes.margins(x=0.08, y=0.02)
