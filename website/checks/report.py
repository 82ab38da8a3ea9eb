"""What was checked, how often, and what is wrong."""

from typing import NamedTuple


class Row(NamedTuple):
    """One check: what it looked at, how often, and what is wrong, a line each."""

    what: str
    count: int
    wrong: list[str]
    said: str = ""


SHOWN = 20  # lines of what is wrong with one check


def show(rows: list[Row]) -> None:
    """Print a table of the checks, and below it what is wrong."""
    width = max(len(row.what) for row in rows)
    print(f"\n{'check':{width}}  checked  wrong")
    for row in rows:
        print(f"{row.what:{width}}  {row.count:7}  {len(row.wrong):5}  {row.said}")
    for row in rows:
        if row.wrong:
            print(f"\n{row.what}:")
            print("\n".join(f"  {x}" for x in row.wrong[:SHOWN]))
            if len(row.wrong) > SHOWN:
                print(f"  and {len(row.wrong) - SHOWN} more")


def place(source: str, needle: str, text: str) -> str:
    """File and line of a source at which it has `needle`, or its first line."""
    numbers = (i for i, line in enumerate(text.splitlines(), 1) if needle in line)
    return f"{source}:{next(numbers, 1)}"
