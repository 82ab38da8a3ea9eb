"""Measures all exhibits and writes the page: `python -m tests.museum`.

With `--page` it writes the pages from what was measured before.
"""

import json
import sys

from .page import (
    EVIDENCE,
    PAGE,
    TABLE,
    key,
    measured,
    museum,
    page,
    show,
    stored,
    table,
)
from .programs import EXHIBITS


def main(argv: list[str]) -> None:
    """Write the measurements and the page."""
    if "--page" not in argv:
        found = {key(x): [show(y) for y in measured(x)] for x in EXHIBITS}
        EVIDENCE.write_text(json.dumps(found, indent=1) + "\n")
    PAGE.write_text(page(PAGE.read_text(), museum(stored())))
    TABLE.write_text(page(TABLE.read_text(), table()))


if __name__ == "__main__":
    main(sys.argv[1:])
