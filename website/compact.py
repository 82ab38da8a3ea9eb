"""Makes the built site smaller: without empty lines, and without files nobody asks for.

A third of a page as it is built is indentation of the builder's templates.
"""

import re
from pathlib import Path


# Within these each space counts.
KEPT = re.compile(r"(<(pre|script|textarea|style)\b.*?</\2>)", re.DOTALL)


def compact(site: Path) -> None:
    for page in site.rglob("*.html"):
        page.write_text(squeezed(page.read_text()))
    used = "\n".join(page.read_text() for page in site.glob("*.html"))
    for style in site.glob("assets/stylesheets/*/*.css"):
        if style.name not in used:  # of the theme's other variant
            style.unlink()


def squeezed(page: str) -> str:
    """The page, with one line break for each run of space that has one."""
    parts = KEPT.split(page)  # between pages' parts: what is kept, and its tag
    plain = lambda part: re.sub(r"\s*\n\s*", "\n", part)
    return "".join(
        x if i % 3 == 1 else plain(x) for i, x in enumerate(parts) if i % 3 != 2
    )
