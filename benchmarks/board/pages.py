"""Write the pages of the board from its rows, and tell where they differ."""

from collections.abc import Iterator
from pathlib import Path

from ..pages import write_table
from . import leaderboard, picture, which
from .results import ROOT, TaskResults


PAGES = {"docs/leaderboard.md": leaderboard.parts, "docs/which.md": which.parts}
PICTURES = "docs/assets/board"
_END = "end"


def write(found: dict[str, TaskResults], root: Path = ROOT) -> None:
    for page, parts in PAGES.items():
        for mark, lines in parts(found).items():
            write_table(root / page, lines, mark, _END)
    folder = root / PICTURES
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in pictures(found).items():
        (root / path).write_text(text)


def pictures(found: dict[str, TaskResults]) -> dict[str, str]:
    """The rate curves of each complete task, by their path."""
    complete = [task for task in found.values() if task.is_complete]
    return {f"{PICTURES}/{t.name}.svg": picture.picture(t) for t in complete}


def wrong(found: dict[str, TaskResults], root: Path = ROOT) -> Iterator[str]:
    """Each line that is not what the rows say, with its file and number."""
    for page, parts in PAGES.items():
        lines = (root / page).read_text().splitlines()
        for mark, expected in parts(found).items():
            start = lines.index(f"<!-- {mark} -->") + 1
            shown = lines[start : lines.index(f"<!-- {_END} -->", start)]
            yield from _differences(page, start + 1, shown, expected)
    for path, text in pictures(found).items():
        file = root / path
        if not file.exists() or file.read_text() != text:
            yield f"{path}:1: not what the rows say; run `make board ARGS=--pages`"


def _differences(page, first, shown, expected):
    count = max(len(shown), len(expected))
    pad = lambda lines: [*lines, *[None] * (count - len(lines))]
    pairs = zip(pad(shown), pad(expected), strict=True)
    for at, (old, new) in enumerate(pairs, first):
        if old != new:
            yield f"{page}:{at}: says {old!r}, but the rows {new!r}"
