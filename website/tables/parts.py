"""Parts of pages that a command writes, and how a page differs from them."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path


def write_table(
    page: Path, lines: Iterable[str], start: str = "table", end: str = "end"
) -> None:
    """Replace what is between two marks, which are comments in the page.

    Raises a `ValueError` for a page without them.
    """
    first, last = f"<!-- {start} -->\n", f"<!-- {end} -->"
    before, rest = page.read_text().split(first, 1)
    _, after = rest.split(last, 1)
    table = "".join(f"{line}\n" for line in lines)
    page.write_text(f"{before}{first}{table}{last}{after}")


def wrong_lines(
    page: Path,
    expected: Sequence[str],
    name: str,
    source: str,
    start: str = "table",
    end: str = "end",
) -> Iterator[str]:
    """Each line between two marks that is not as expected, with its number.

    name: of the page, as it is shown.
    source: where the expected lines are from.
    """
    lines = page.read_text().splitlines()
    first = lines.index(f"<!-- {start} -->") + 1
    shown = lines[first : lines.index(f"<!-- {end} -->", first)]
    count = max(len(shown), len(expected))
    pad = lambda lines: [*lines, *[None] * (count - len(lines))]
    pairs = zip(pad(shown), pad(expected), strict=True)
    for at, (old, new) in enumerate(pairs, first + 1):
        if old != new:
            yield f"{name}:{at}: says {old!r}, but {source} {new!r}"
