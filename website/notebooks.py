"""A notebook of each page that has programs, with its text and its blocks in order."""

import json
import re
from pathlib import Path


BLOCK = re.compile(r"^```python\n(.*?)^```\n?", re.DOTALL | re.MULTILINE)
# A link to a file beside the page, which a notebook elsewhere cannot follow.
BESIDE = re.compile(r"\[([^\]]+)\]\((?!https?:)[^)]*\)")
PICTURE = re.compile(r"^!\[.*\n", re.MULTILINE)


def write(folder: Path, sources: dict[str, str]) -> None:
    """Write `notebooks/`, and a link to it at the end of each of these pages."""
    (folder / "notebooks").mkdir(exist_ok=True)
    for page in sources:
        text = (folder / page).read_text()
        if not BLOCK.search(text) or "/" in page:
            continue
        name = f"{Path(page).stem}.ipynb"
        (folder / "notebooks" / name).write_text(notebook(text))
        link = f'[Open as notebook](notebooks/{name}){{ download="{name}" }}'
        (folder / page).write_text(f"{text.rstrip()}\n\n{link}\n")


def notebook(text: str) -> str:
    """A page as a notebook, in format 4.5."""
    cells = []
    for i, part in enumerate(BLOCK.split(text)):
        kind = "code" if i % 2 else "markdown"
        part = part if i % 2 else BESIDE.sub(r"\1", PICTURE.sub("", part))
        if part.strip():
            cells.append(cell(kind, part.strip(), len(cells)))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    made = {"cells": cells, "metadata": {"kernelspec": kernel}}
    return json.dumps(made | {"nbformat": 4, "nbformat_minor": 5}, ensure_ascii=False)


def cell(kind: str, text: str, number: int) -> dict:
    made = {"cell_type": kind, "id": str(number), "metadata": {}, "source": text}
    return made | ({"execution_count": None, "outputs": []} if kind == "code" else {})
