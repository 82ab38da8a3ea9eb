"""Show the number of finished runs: live in a terminal, otherwise plain lines."""

import contextlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

from .._minimize.progress import PAUSE, PERIOD, every, is_live


def open_display(runs: int, progress: bool) -> Any:
    """A context manager; its value is called with the number of runs done and a line
    about them, and the last time with `is_last=True`."""
    if not progress:
        return contextlib.nullcontext(lambda now, is_last=False: None)
    is_drawn = is_live() and importlib.util.find_spec("rich") is not None
    return _live(runs) if is_drawn else _plain(runs)


@contextlib.contextmanager
def _plain(runs):
    def draw(now):
        done, line = now
        print(f"{done}/{runs} runs   {line}", file=sys.stderr, flush=True)

    yield every(PAUSE, draw)


@contextlib.contextmanager
def _live(runs):
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn as Rest,
    )

    count = TextColumn("{task.completed}/{task.total} runs")
    text = TextColumn("{task.description}")
    columns = count, BarColumn(bar_width=24), TimeElapsedColumn(), Rest(), text
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("compiling", total=runs)
        draw: Callable = lambda now: bar.update(
            task, completed=now[0], description=now[1].replace("[", r"\[")
        )
        yield every(PERIOD, draw)
