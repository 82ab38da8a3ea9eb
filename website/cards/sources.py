"""What the sources say of an optimizer: what it does, formulas, paper, departures."""

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stepax._engine.factories.registry import ROWS, Row

from . import traits


ROOT = Path(__file__).parents[2]
CITED = re.compile(r" \([^()]*, (?:19|20)\d\d\b[^()]*\)")


def paragraphs(text: str) -> Iterator[str]:
    """Runs of lines between empty ones."""
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if block.strip():
            yield block


def what(row: Row) -> str:
    """What it does: the first paragraph of its docstring, without the paper."""
    said = " ".join(next(paragraphs(row.factory.__doc__ or "")).split())
    return CITED.sub("", said)


def formula(doc: str | None) -> str:
    """The indented blocks of a docstring, which are its equations."""
    blocks = [x for x in paragraphs(doc or "") if _is_indented(x)]
    return "\n\n".join(inspect.cleandoc("\n" + x) for x in blocks)


def _is_indented(block: str) -> bool:
    return all(line.startswith("    ") for line in block.splitlines())


def formulas(row: Row, tx: Any) -> dict[str, str]:
    """Equations by the name of the factory: its own, and those of its parts."""
    found = {row.name: formula(row.factory.__doc__)}
    mentioned = re.findall(r"`(\w+)`", found[row.name])
    recipes = [part.call for part in traits.components(tx) if part.call]
    names = [call.name for call in recipes] + mentioned
    for name in names:
        part = ROWS.get(name)
        if part and part.kind != "wrapper" and name not in ORDINARY:
            found.setdefault(name, formula(part.factory.__doc__))
    return {name: text for name, text in found.items() if text}


# Their formulas are part of that of each optimizer.
ORDINARY = ("scale_by_learning_rate", "add_decayed_weights", "scale", "identity")


def module_doc(row: Row) -> str:
    module = sys.modules[inspect.unwrap(row.factory).__module__]
    return module.__doc__ or ""


def citation(row: Row) -> str:
    """What the file says of its paper: authors, year, title."""
    if not row.paper:
        return ""
    number = re.sub(r"^(arXiv:|doi:|DOI )", "", row.paper)
    number = number.removeprefix("https://")
    blocks = [" ".join(x.split()) for x in paragraphs(module_doc(row))]
    for one in (clause for block in blocks for clause in block.split("; ")):
        if number in one and re.search(r"\d{4}", one) and ", " in one:
            return one[:1].upper() + one[1:].rstrip(".")
    # Of a book or of proceedings the file has no number, and all that it cites is said.
    cites = (x for x in blocks[1:] if re.search(r", (19|20)\d\d, ", x))
    return next(cites, "").rstrip(".")


def link(paper: str) -> str:
    """The address of a paper."""
    if paper.startswith("arXiv:"):
        return f"https://arxiv.org/abs/{paper.removeprefix('arXiv:')}"
    if paper[:4].lower() in ("doi:", "doi "):
        return f"https://doi.org/{paper[4:].strip()}"
    return paper


def departures(row: Row) -> list[str]:
    """The paragraphs of the file that say where it differs from the paper."""
    found, in_list = [], False
    for block in paragraphs(module_doc(row)):
        begins = re.match(r"(Difference|Departure)", block)
        if begins or in_list and re.match(r"(-|\d\.) ", block.strip()):
            found.append(
                block if block.strip()[:1] in "-1" else " ".join(block.split())
            )
        in_list = bool(begins) and block.rstrip().endswith(":")
    return found


def file_of(row: Row) -> str:
    file = Path(inspect.getsourcefile(inspect.unwrap(row.factory)) or "")
    return file.relative_to(ROOT).as_posix()
