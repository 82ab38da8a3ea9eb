"""How many optimizers and schedules there are, in the README's table.

`python -m website.tables.counts` writes our column; those of other libraries are by
hand, as `tests/project/pages/test_readme.py` finds them.
"""

import inspect
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import stepax.contrib
import stepax.schedules
from stepax._engine.factories.registry import ROWS


PAGE = Path(__file__).parents[2] / "README.md"


def counts(factories: Iterable[Callable]) -> tuple[int, int]:
    """How many there are, and how many of them have a weight decay."""
    found = [*map(inspect.signature, factories)]
    return len(found), sum("weight_decay" in x.parameters for x in found)


def is_schedule(name: str) -> bool:
    return name.endswith("schedule") and not name.startswith("_")


def with_counts(page: str) -> str:
    """The page with today's numbers at the beginning of the last cell of each row."""
    ours = [x.factory for x in ROWS.values() if x.kind == "optimizer"]
    titles = "optimizers", "of these with weight decay", "learning-rate schedules"
    numbers = *counts(ours), sum(map(is_schedule, dir(stepax.schedules)))
    for title, number in zip(titles, numbers, strict=True):
        row = rf"^(\| {title} (?:\|[^|]*){{2}}\| )\d+"
        page, found = re.subn(row, rf"\g<1>{number}", page, flags=re.MULTILINE)
        assert found == 1, title
    return page


if __name__ == "__main__":
    PAGE.write_text(with_counts(PAGE.read_text()))
