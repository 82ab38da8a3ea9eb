"""Write the pages of the board from its rows, and tell where they differ."""

from collections.abc import Iterator
from pathlib import Path

from website.tables.parts import write_table, wrong_lines

from . import leaderboard, picture, which
from .results import ROOT, TaskResults


PAGES = {
    "docs/leaderboard.md": leaderboard.parts,
    "docs/evidence/leaderboard.md": leaderboard.evidence,
    "docs/which.md": which.parts,
    "docs/evidence/learning_rates.md": which.evidence,
}
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
        for mark, expected in parts(found).items():
            path = root / page
            yield from wrong_lines(path, expected, page, "the rows", mark, _END)
    for path, text in pictures(found).items():
        file = root / path
        if not file.exists() or file.read_text() != text:
            yield f"{path}:1: not what the rows say; run `make board ARGS=--pages`"
