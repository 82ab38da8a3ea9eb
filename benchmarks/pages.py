"""Tables that a command writes into a page of the documentation."""

from collections.abc import Iterable
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
    table = "\n".join(lines)
    page.write_text(f"{before}{first}{table}\n{last}{after}")
