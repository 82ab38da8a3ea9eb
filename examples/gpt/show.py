"""Progress while it trains, and a picture afterwards."""

import contextlib

import numpy as np
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from .training import CHUNK


@contextlib.contextmanager
def progress(plan, console):
    """Its value is called with each report: a bar, and a line for each test."""
    text = TextColumn("{task.completed}/{task.total} {task.description}")
    said = set()
    with Progress(BarColumn(), text, TimeElapsedColumn(), console=console) as bar:
        task = bar.add_task("compiling", total=plan.steps)

        def show(report):
            mean = report.losses[-CHUNK:].mean() if report.step else np.nan
            description = f"{plan.optimizer}: loss {mean:.3f}"
            bar.update(task, completed=report.step, description=description)
            if report.step in report.tested and report.step not in said:
                said.add(report.step)
                value = report.tested[report.step]
                console.print(
                    f"saved step {report.step} of {plan.optimizer}: "
                    f"loss {mean:.3f}, held-out {value:.3f}"
                )

        yield show


def draw(reports, schedule, title, path):
    """Write a PNG of the losses, and of the learning rate relative to its peak.

    reports: the last report of each optimizer, by its name.
    """
    from matplotlib.figure import Figure  # without pyplot, which looks for a window

    figure = Figure(figsize=(8, 6), dpi=150, layout="constrained")
    top, bottom = figure.subplots(2, sharex=True, height_ratios=(3, 1))
    for i, (name, report) in enumerate(reports.items()):
        losses = report.losses
        top.plot(np.arange(1, len(losses) + 1), losses, f"C{i}", alpha=0.2)
        top.plot(*smooth(losses), f"C{i}", label=f"{name}, mean of {CHUNK}")
        tests = sorted(report.tested.items())
        if tests:
            top.plot(*zip(*tests, strict=True), f"C{i}o", label=f"{name}, held-out")
        steps = np.arange(report.step)
    top.set(ylabel="nats per character", title=title)
    top.legend()
    bottom.plot(steps, [float(schedule(i)) for i in steps], "C2")
    bottom.set(xlabel="step", ylabel="rate / peak", ylim=(0, None))
    for axes in (top, bottom):
        axes.grid(alpha=0.3)
    figure.savefig(path)


def smooth(losses):
    """The last step of each chunk, and the mean of its losses."""
    starts = range(0, len(losses), CHUNK)
    last = [min(i + CHUNK, len(losses)) for i in starts]
    return last, [losses[i : i + CHUNK].mean() for i in starts]
