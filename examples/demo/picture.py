"""Plot loss, accuracy and learning rate over the training steps."""

from pathlib import Path

import numpy as np

from .training import Report


def draw(reports: list[Report], title: str, path: Path):
    """Write a PNG of 1,200 by 1,350 pixels to `path`."""
    # Without pyplot, which would look for a window system.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 9), dpi=150, layout="constrained")
    loss, accuracy, rate = figure.subplots(3, sharex=True)
    _draw_loss(loss, reports)
    _draw_accuracy(accuracy, reports)
    _draw_learning_rate(rate, reports)
    for axes in (loss, accuracy, rate):
        axes.grid(alpha=0.3)
    figure.align_ylabels()
    figure.suptitle(title)
    figure.savefig(path, format="png")


def _draw_loss(axes, reports):
    loss = _column(reports, "loss")
    label = f"mean of {len(reports[0].trace.loss)}"
    means = [report.trace.loss.mean() for report in reports]
    axes.plot(_every_step(loss), loss, color="C0", alpha=0.3, label="each mini-batch")
    axes.plot(_middles(reports), means, color="C0", marker=".", label=label)
    axes.set(ylabel="training loss", yscale="log")
    axes.legend(loc="upper right")


def _draw_accuracy(axes, reports):
    train = [100 * report.trace.accuracy.mean() for report in reports]
    test = [100 * report.test_accuracy for report in reports]
    ends = [report.step for report in reports]
    axes.plot(_middles(reports), train, marker=".", label="training, shifted images")
    axes.plot(ends, test, marker=".", label="test, held-out images")
    axes.set(ylabel="accuracy in %", ylim=(0, 103))
    axes.legend(loc="lower right")


def _draw_learning_rate(axes, reports):
    rate = _column(reports, "learning_rate")
    axes.plot(_every_step(rate), rate, color="C2", label="as read from the state")
    axes.set(xlabel="step", ylabel="learning rate", ylim=(0, None))
    axes.legend(loc="upper right")


def _column(reports, name):
    return np.concatenate([getattr(report.trace, name) for report in reports])


def _every_step(column):
    return np.arange(1, len(column) + 1)


def _middles(reports):
    return [report.step - (len(report.trace.loss) - 1) / 2 for report in reports]
