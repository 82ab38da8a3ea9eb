"""Runs the code of a page of the documentation, as its readers would."""

import re
from pathlib import Path


ROOT = Path(__file__).parents[1]


def run_blocks(page: str) -> int:
    """Run all blocks in order, in one namespace; returns how many there are."""
    text = (ROOT / page).read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    return len(blocks)
