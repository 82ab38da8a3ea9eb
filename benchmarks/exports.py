"""Sorts the lists `__all__` and fills their lines, as `make format` does.

`python -m benchmarks.exports` writes them; new names may stand anywhere in a list.
"""

import ast
import re
import textwrap
from pathlib import Path


PACKAGE = Path(__file__).parents[1] / "stepax"
LIST = re.compile(r"^__all__ = (\[\n.*?\n\])  # fmt: skip$", re.MULTILINE | re.DOTALL)


def formatted(source: str) -> str:
    """A file with its `__all__` in order: classes, then functions."""

    def filled(match: re.Match) -> str:
        names = [f'"{name}",' for name in sorted({*ast.literal_eval(match[1])})]
        lines = textwrap.wrap(
            " ".join(names), 88, initial_indent="    ", subsequent_indent="    "
        )
        return "\n".join(["__all__ = [", *lines, "]  # fmt: skip"])

    return LIST.sub(filled, source)


def files() -> list[Path]:
    return [x for x in PACKAGE.rglob("*.py") if LIST.search(x.read_text())]


if __name__ == "__main__":
    for file in files():
        if (new := formatted(source := file.read_text())) != source:
            file.write_text(new)
