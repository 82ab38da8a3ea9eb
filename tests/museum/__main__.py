"""Measures all exhibits and writes the pages: `python -m tests.museum`."""

import argparse
import json

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


def main() -> None:
    """Write the measurements and the pages."""
    parser = argparse.ArgumentParser(prog="python -m tests.museum", description=__doc__)
    told = "write the pages from what was measured before"
    parser.add_argument("--page", action="store_true", help=told)
    if not parser.parse_args().page:
        found = {key(x): [show(y) for y in measured(x)] for x in EXHIBITS}
        EVIDENCE.write_text(json.dumps(found, indent=1) + "\n")
    PAGE.write_text(page(PAGE.read_text(), museum(stored())))
    TABLE.write_text(page(TABLE.read_text(), table()))


if __name__ == "__main__":
    main()
