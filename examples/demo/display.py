"""Show the progress of training: live in a terminal, otherwise plain lines."""

import contextlib
import os
import sys
from collections import deque

from .training import Report


ROWS = 8
LINES = 10


def open_display(steps: int):
    """A context manager whose value is called with each report of a run of `steps`."""
    live = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    return _live(steps) if live else _plain(steps)


def summary(report: Report) -> dict[str, str]:
    """The displayed values: means over the steps of `report`, or the last value."""
    trace = report.trace
    return {
        "loss": f"{trace.loss.mean():.4f}",
        "accuracy": f"{100 * trace.accuracy.mean():.1f} %",
        "test accuracy": f"{100 * report.test_accuracy:.1f} %",
        "learning rate": f"{trace.learning_rate[-1]:.2e}",
        "gradient norm": f"{trace.grad_norm[-1]:.3f}",
    }


@contextlib.contextmanager
def _plain(steps):
    printed = 0

    def show(report):
        nonlocal printed
        due = report.step * LINES // steps
        if due > printed:
            printed = due
            numbers = (f"{name} {value}" for name, value in summary(report).items())
            print(f"step {report.step}/{steps}", *numbers, sep="   ", flush=True)

    yield show


@contextlib.contextmanager
def _live(steps):
    from rich.console import Group
    from rich.live import Live
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("step {task.completed}/{task.total}"),
        BarColumn(bar_width=50),
        TimeElapsedColumn(),
    )
    task = bar.add_task("training", total=steps)
    rows = deque(maxlen=ROWS)
    with Live(bar, refresh_per_second=8) as live:

        def show(report):
            rows.append((str(report.step), *summary(report).values()))
            bar.update(task, completed=report.step)
            live.update(Group(_table(["step", *summary(report)], rows), bar))

        yield show


def _table(names, rows):
    from rich.table import Table

    table = Table()
    for name in names:
        table.add_column(name, justify="right", min_width=6)
    for row in rows:
        table.add_row(*row)
    return table
