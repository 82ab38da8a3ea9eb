"""Which blocks of a page are its programs, for the buttons that `site.js` makes.

One copies them as one script, and the other saves the page as a notebook.
"""

import re
from pathlib import Path


FENCE = re.compile(
    r"^ *(?P<mark>```|~~~)(?P<kind>\w*).*?^ *(?P=mark)\s*?$", re.M | re.S
)


def write(folder: Path, sources: dict[str, str]) -> None:
    """Add to each guide the numbers of its programs, of all its blocks from 0."""
    for page in sources:
        text = (folder / page).read_text()
        found = programs(text)
        if found and not page.startswith("examples/"):
            numbers = " ".join(map(str, found))
            place = f'<p class="programs" data-programs="{numbers}"></p>'
            (folder / page).write_text(f"{text.rstrip()}\n\n{place}\n")


def programs(text: str) -> list[int]:
    kinds = [x["kind"] for x in FENCE.finditer(text)]
    return [i for i, kind in enumerate(kinds) if kind == "python"]
