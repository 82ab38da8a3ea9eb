"""Shared by commands: values of options, with errors of one line, and exit codes."""

import argparse
import difflib
import math
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any


def exit_code(run: Callable[[argparse.Namespace], int], args: Any) -> int:
    """The result of `run`, even if Ctrl-C or a closed pipe ends it."""
    try:
        return run(args)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Keep the interpreter from flushing to the pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def one_of(text: str, choices: Iterable[str]) -> str:
    """The name of an optimizer, in any case."""
    name = text.lower()
    if name in choices:
        return name
    nearest = difflib.get_close_matches(name, choices, n=1, cutoff=0.0)[0]
    raise argparse.ArgumentTypeError(
        f'there is no optimizer "{text}" here, did you mean "{nearest}"?'
    )


def positive(kind: type) -> Callable[[str], Any]:
    """A finite `int` or `float` above 0."""

    def parse(text):
        value = number(kind, text)
        if not 0 < value < math.inf:
            raise argparse.ArgumentTypeError(f"expected more than 0, got {text}")
        return value

    return parse


def number(kind: type, text: str) -> Any:
    """An `int` or a `float`."""
    try:
        return kind(text)
    except ValueError:
        noun = {int: "a whole number", float: "a number"}[kind]
        raise argparse.ArgumentTypeError(f'expected {noun}, got "{text}"') from None
