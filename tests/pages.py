"""The programs in the pages of the documentation, run as their readers would."""

import re
from pathlib import Path


ROOT = Path(__file__).parents[1]


def blocks(page: str) -> list[str]:
    """The Python programs of a page, in order; each uses the names of those before."""
    text = (ROOT / page).read_text()
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def run_blocks(page: str) -> int:
    """Run all blocks in order, in one namespace; returns how many there are."""
    names = {}
    for block in blocks(page):
        exec(compile(block, page, "exec"), names)
    return len(blocks(page))
