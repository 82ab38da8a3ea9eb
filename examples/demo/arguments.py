"""Values of options of the demonstration and of the benchmark."""

import argparse
from collections.abc import Callable
from pathlib import Path

from stepax.__main__ import number


def seed(text: str) -> int:
    """A whole number of 32 bits."""
    value = number(int, text)
    if not 0 <= value < 2**32:
        raise argparse.ArgumentTypeError(f"expected 0 to 2**32 - 1, got {text}")
    return value


def file(suffix: str) -> Callable[[str], Path]:
    """A file of this kind, in a folder that exists."""

    def parse(text):
        path = Path(text)
        if path.suffix.lower() != suffix:
            raise argparse.ArgumentTypeError(
                f"expected a name ending in {suffix}, got {text}"
            )
        if not path.absolute().parent.is_dir():
            raise argparse.ArgumentTypeError(f"there is no folder {path.parent}")
        return path

    return parse
