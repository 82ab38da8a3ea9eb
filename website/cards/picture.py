"""Pictures as SVG: the path on a bent valley, and the loss, in colours of the page."""

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .measure import MULTIPLES, unpacked
from .problems import BEND, START, valley


WIDTH, HEIGHT = 640, 480
LEFT, RIGHT, BOTTOM, TOP = -2.0, 2.0, -1.0, 3.0
BEST, FAINT = MULTIPLES.index(1.0), (MULTIPLES.index(1 / 4), MULTIPLES.index(4.0))


def write_background(folder: Path) -> None:
    """The level lines of the valley, which all cards and no card alone has."""
    levels = [valley(START) * 3.0**i for i in range(-6, 4)]
    paths = " ".join(map(level_line, levels))
    text = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'preserveAspectRatio="none"><path fill="none" stroke="#888" '
        f'stroke-opacity=".45" stroke-width="2" d="{paths}"/></svg>'
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "valley.svg").write_text(text + "\n")


def level_line(level: float) -> str:
    """Where the valley has a value, solved for its second coordinate."""
    root = math.sqrt(level)
    x = 1 + root * np.sin(np.linspace(-np.pi / 2, np.pi / 2, 121))
    height = np.sqrt(np.maximum(level - (1 - x) ** 2, 0) / BEND)
    around = [*zip(x, x**2 + height, strict=True)]
    around += zip(x[::-1], x[::-1] ** 2 - height[::-1], strict=True)
    return f"{line(map(place, around))}Z"


def place(point: Sequence[float]) -> tuple[float, float]:
    """Where a point of the valley is in the picture."""
    far = 4 * WIDTH
    x = (point[0] - LEFT) / (RIGHT - LEFT) * WIDTH
    y = (TOP - point[1]) / (TOP - BOTTOM) * HEIGHT
    return min(max(x, -far), far), min(max(y, -far), far)


def figure(name: str, found: dict[str, Any]) -> str:
    """The picture of a card as HTML."""
    rate = found["rate"]
    at = "" if rate is None else f" at a learning rate of {rate:g}"
    losses = [found["losses"][i] for i in (*FAINT, BEST)]
    drawn = [loss(losses if rate is not None else losses[-1:], f"Loss of {name}{at}")]
    said = "The loss of a fit with an ill-conditioned 8 × 8 matrix"
    if found["paths"]:
        said = "Left, the path on a bent valley; right, the loss"
        drawn.insert(0, path(found["paths"][BEST], f"Path of {name}{at}"))
    if rate is not None:
        said += (
            f", {at.strip()}, the best of nine; faint, at a quarter and four times it"
        )
    said += ". This shows how it moves, not whether it is better."
    return "\n".join(
        [
            '<figure class="card">',
            *drawn,
            f"<figcaption>{said}</figcaption>",
            "</figure>",
        ]
    )


def path(points: str, said: str) -> str:
    drawn = list(map(place, unpacked(points)))
    (x0, y0), (x1, y1), (x, y) = drawn[0], drawn[-1], place((1, 1))
    return svg(
        "path",
        said,
        f'<path d="{line(drawn)}"/>',
        f'<circle class="from" cx="{x0:.0f}" cy="{y0:.0f}" r="8"/>',
        f'<path class="least" d="M{x - 8:.0f} {y - 8:.0f}l16 16m0-16l-16 16"/>',
        f'<circle cx="{x1:.0f}" cy="{y1:.0f}" r="7"/>',
    )


def line(points: Iterable[Sequence[float]]) -> str:
    """A line through points, as whole steps from one to the next."""
    drawn, last = "", (0, 0)
    for x, y in points:
        here = round(x), round(y)
        step = here[0] - last[0], here[1] - last[1]
        if not drawn:
            drawn = f"M{here[0]} {here[1]}l"
        elif step != (0, 0):
            drawn += f" {step[0]} {step[1]}"
        last = here
    # A path that stays where it is has no steps.
    return drawn.replace(" -", "-").replace("l ", "l").removesuffix("l")


LEFT_OF, RIGHT_OF, ABOVE, BELOW, FLOOR = 88, 28, 24, 48, 1e-10


def loss(losses: list[list[float | None]], said: str) -> str:
    """Losses over steps, the last one strong, in logarithms."""
    low, high = _decades(losses)
    ease = (HEIGHT - ABOVE - BELOW) / (high - low)
    width = (WIDTH - LEFT_OF - RIGHT_OF) / (len(losses[0]) - 1)
    across = lambda step: LEFT_OF + step * width
    down = lambda x: max(ABOVE + (high - math.log10(max(x, FLOOR))) * ease, 0)
    marks = []
    for decade in range(high, low - 1, -max(1, round((high - low) / 5))):
        y = down(10.0**decade)
        label = f'10<tspan dy="-8" font-size="16">{decade}</tspan>'
        marks.append(f'<path class="grid" d="M{LEFT_OF} {y:.0f}H{WIDTH - RIGHT_OF}"/>')
        marks.append(f'<text x="{LEFT_OF - 12}" y="{y + 8:.0f}">{label}</text>')
    for step in (0, 50, 100):
        x = across(step)
        marks.append(f'<text class="step" x="{x:.0f}" y="{HEIGHT - 12}">{step}</text>')
    lines = []
    for i, one in enumerate(losses, 1):
        kind = "" if i == len(losses) else ' class="faint"'
        points = ((across(step), down(x)) for step, x in enumerate(_finite(one)))
        lines.append(f'<path{kind} d="{line(points)}"/>')
    return svg("loss", said, *marks, *lines)


def _finite(losses: list[float | None]) -> Iterator[float]:
    """The losses until one is not finite."""
    for x in losses:
        if x is None:
            return
        yield x


def _decades(losses: list[list[float | None]]) -> tuple[int, int]:
    """The decades that the axis reaches over; a run that diverges leaves it."""
    known = [max(x, FLOOR) for x in losses[-1] if x is not None] or [1.0]
    low, high = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
    return min(low, high - 1), high


ROW = 44


def spans(name: str, found: dict[str, dict[str, Any]]) -> str:
    """For each task the span of good rates as a bar, and the tuned one as a dot."""
    low = math.floor(math.log10(min(min(x["low"], x["rate"]) for x in found.values())))
    high = math.ceil(math.log10(max(max(x["high"], x["rate"]) for x in found.values())))
    width = (WIDTH - 160 - RIGHT_OF) / max(high - low, 1)
    across = lambda rate: 160 + (math.log10(rate) - low) * width
    bottom, marks = len(found) * ROW, []
    for decade in range(low, high + 1):
        x = across(10.0**decade)
        label = f"{10.0**decade:g}"
        marks.append(f'<path class="grid" d="M{x:.0f} 0V{bottom}"/>')
        marks.append(f'<text class="step" x="{x:.0f}" y="{bottom + 30}">{label}</text>')
    for i, (task, one) in enumerate(found.items()):
        y = i * ROW + ROW // 2
        ends = f"M{across(one['low']):.0f} {y}H{across(one['high']):.0f}"
        marks.append(f'<text x="144" y="{y + 8}">{task}</text>')
        marks.append(f'<path class="span" d="{ends}"/>')
        marks.append(f'<circle cx="{across(one["rate"]):.0f}" cy="{y}" r="8"/>')
    said = f"Learning rates of {name} with a loss within 25 % of the best, by task"
    drawn = svg("spans", said, *marks, height=bottom + 40)
    return f'<figure class="card">\n{drawn}\n</figure>'


def svg(kind: str, said: str, *drawn: str, height: int = HEIGHT) -> str:
    return (
        f'<svg class="{kind}" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{said}">{"".join(drawn)}</svg>'
    )
