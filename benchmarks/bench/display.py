"""Show what is being measured: a live line in a terminal, otherwise plain lines."""

import contextlib
import importlib.util
import os
import sys
from collections.abc import Callable
from typing import Any

from .measure import IN_ONE, OURS, WAYS


def open_display(cases: int) -> Any:
    """A context manager; its value is called with (shape, case, what, library), and at
    the end of a case with (shape, case, rows)."""
    is_terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    if is_terminal and importlib.util.find_spec("rich"):
        return _live(cases)
    return _plain(cases)


def summary(rows: list[dict]) -> str:
    """The times of our step, unfused and fused, and their ratios to the others."""
    at = {row["library"]: row for row in rows}
    parts = [
        f"step {1e3 * at[OURS]['step']:.2f} ms, {1e3 * at[IN_ONE]['step']:.2f} fused"
    ]
    both = zip(*(at[way]["ratios"].items() for way in WAYS), strict=True)
    for (rival, two), (_, one) in both:
        if "step" in two:
            parts.append(f"{two['step'][0]:.2f}, {one['step'][0]:.2f} of {rival}")
    return "   ".join(parts)


class Display:
    """Shows the progress of a run.

    write: prints a finished line.
    tell: shows the current activity, if the display is live.
    """

    def __init__(self, write: Callable, tell: Callable):
        self.write, self.tell = write, tell

    def finish(self, shape: str, case: str, rows: list[dict], number: int, of: int):
        self.write(f"{number:2}/{of}  {shape:8}  {case:29}{summary(rows)}")


@contextlib.contextmanager
def _plain(cases):
    yield Display(lambda text: print(text, flush=True), lambda text, done: None)


@contextlib.contextmanager
def _live(cases):
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = BarColumn(bar_width=24), TextColumn("{task.completed}/{task.total}")
    text = TextColumn("{task.description}")
    with Progress(*columns, TimeElapsedColumn(), text) as progress:
        task = progress.add_task("", total=cases)
        yield Display(
            lambda line: progress.console.print(line, highlight=False),
            lambda text, done: progress.update(task, description=text, completed=done),
        )
