"""Processes that tests start: where they import from, what a terminal reads of them."""

import os
import sys


def with_path() -> dict[str, str]:
    """The environment of a process that imports the tests and their tables."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def read_all(terminal: int) -> str:
    told = b""
    while True:
        try:
            told += os.read(terminal, 4096)
        except OSError:  # how Linux says that the other end was closed
            return told.decode()
