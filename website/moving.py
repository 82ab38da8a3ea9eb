"""The paths of "Watch them move", in one file that the page loads."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np

from .cards import traits
from .cards.measure import CACHE, MULTIPLES, SCALE, STEPS, measured, unpacked
from .cards.problems import BEND


# Multiples of the best rate, of those that are measured.
SHOWN = (1 / 4, 1 / 2, 1.0, 2.0, 4.0)


def write(folder: Path, cache: Path = CACHE) -> None:
    """Write `assets/moving.json`: all optimizers that are drawn on the valley."""
    found = {row.name: measured(row, cache) for row in traits.optimizers()}
    (folder / "assets").mkdir(parents=True, exist_ok=True)
    text = json.dumps(content(found), separators=(",", ":"))
    (folder / "assets" / "moving.json").write_text(text + "\n")


def content(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The problem, and of each optimizer its best rate and its paths."""
    drawn = {name: one for name, one in found.items() if one["paths"]}
    return {
        "bend": BEND,
        "scale": SCALE,
        "steps": STEPS,
        "multiples": SHOWN,
        "optimizers": {k: [x["rate"], paths(x)] for k, x in drawn.items()},
    }


def paths(one: dict[str, Any]) -> str:
    """Its paths, one after another; a single one if it has no rate."""
    multiples = (1.0,) if one["rate"] is None else SHOWN
    chosen = [unpacked(one["paths"][MULTIPLES.index(x)]) for x in multiples]
    return encoded(np.concatenate(chosen))


def encoded(points: np.ndarray) -> str:
    """Steps from point to point in base64 of int16, which wrap as their sums do."""
    numbers = np.round(points * SCALE).astype(np.int64)
    steps = np.diff(numbers, axis=0, prepend=0).astype("<i2")
    return base64.b64encode(steps.tobytes()).decode()


def decoded(text: str) -> np.ndarray:
    """The points; the page does the same."""
    steps = np.frombuffer(base64.b64decode(text), "<i2").reshape(-1, 2)
    return np.cumsum(steps, 0, dtype=np.int16) / SCALE
