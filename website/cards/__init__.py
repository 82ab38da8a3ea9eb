"""A page for each optimizer, and a table of all, generated from the registry."""

from pathlib import Path
from typing import Any

from . import page, picture, table, traits
from .measure import CACHE, measured


def write(folder: Path, cache: Path = CACHE) -> None:
    """Write `cards/` and the level lines that all cards have behind their paths."""
    cards = folder / "cards"
    cards.mkdir(parents=True, exist_ok=True)
    picture.write_background(folder / "assets")
    found: dict[str, dict[str, Any]] = {}
    for row in traits.optimizers():
        found[row.name] = measured(row, cache)
        (cards / f"{row.name}.md").write_text(page.page(row, found[row.name]))
    (cards / "index.md").write_text(table.page(found))
