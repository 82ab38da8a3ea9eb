"""Loss against learning rate, a panel for each optimizer, as a small SVG.

The ground is transparent and the words are grey, so that it fits light and dark pages.
"""

from collections.abc import Iterator

import numpy as np

from . import rules
from .results import Result, TaskResults


_WIDTH, _HEIGHT, _COLUMNS = 172, 104, 4
_LEFT, _TOP, _BOTTOM, _GAP = 6, 18, 16, 8
_GREY, _LINE, _OTHER = "#808080", "#3f8fd2", "#e0803f"


def picture(task: TaskResults) -> str:
    """All curves of a task; those of others are aside, the reference's in each."""
    results = list(task.fresh.values())
    rows = -(-len(results) // _COLUMNS)
    width, height = _COLUMNS * _WIDTH, rows * _HEIGHT
    frame = _Frame(results)
    reference = task.fresh[rules.REFERENCE]
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="10" fill="{_GREY}">'
    ]
    for i, result in enumerate(results):
        x, y = i % _COLUMNS * _WIDTH, i // _COLUMNS * _HEIGHT
        lines.append(f'<g transform="translate({x} {y})">')
        lines.extend(_panel(frame, result, reference))
        lines.append("</g>")
    return "\n".join([*lines, "</svg>", ""])


class _Frame:
    """From rates and losses to places in a panel, both logarithmic."""

    def __init__(self, results: list[Result]):
        rates = [x for r in results for x in r.row["curve_rates"]]
        losses = np.concatenate([r.curve.ravel() for r in results])
        self.rates = np.log10([min(rates), max(rates)])
        self.losses = np.log10([losses.min(), losses.max()])

    def x(self, rate):
        low, high = self.rates
        return _LEFT + (np.log10(rate) - low) / (high - low) * (_WIDTH - _LEFT - _GAP)

    def y(self, loss):
        low, high = self.losses
        part = (np.log10(loss) - low) / max(high - low, 1e-9)
        return _HEIGHT - _BOTTOM - part * (_HEIGHT - _BOTTOM - _TOP)


def _panel(frame, result, reference) -> Iterator[str]:
    bottom = _HEIGHT - _BOTTOM
    yield f'<text x="{_LEFT}" y="12">{result.name}</text>'
    yield f'<path d="M{_LEFT} {bottom}H{_WIDTH - _GAP}" stroke="{_GREY}"/>'
    for power in range(*np.ceil(frame.rates + [0, 1e-9]).astype(int)):
        x = frame.x(10.0**power)
        yield f'<path d="M{x:.0f} {bottom}v3" stroke="{_GREY}"/>'
        if power % 2 == 0:
            place = f'x="{x:.0f}" y="{_HEIGHT - 3}" text-anchor="middle"'
            yield f"<text {place}>{10.0**power:g}</text>"
    if result is not reference:
        yield _line(frame, reference, _GREY, 1)
    rates, losses = result.row["curve_rates"], result.curve
    band = list(zip(rates, losses.max(1), strict=True))
    band += list(zip(rates, losses.min(1), strict=True))[::-1]
    yield f'<path d="M{_places(frame, band)}Z" fill="{_LINE}" fill-opacity=".25"/>'
    yield _line(frame, result, _LINE, 2)
    x, y = frame.x(result.point["rate"]), frame.y(result.mean)
    yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{_OTHER}"/>'


def _line(frame, result, colour, width):
    means = np.exp(np.log(result.curve).mean(1))
    places = _places(frame, zip(result.row["curve_rates"], means, strict=True))
    return f'<path d="M{places}" fill="none" stroke="{colour}" stroke-width="{width}"/>'


def _places(frame, points):
    return "L".join(f"{frame.x(x):.1f} {frame.y(y):.1f}" for x, y in points)
