"""The command `demo`: train, show progress, draw, and report the accuracy."""

import argparse
import importlib.util
import sys
import time

import numpy as np

from . import training


EXTRAS = {"matplotlib": "matplotlib", "rich": "rich", "sklearn": "scikit-learn"}


def missing_extras() -> list[str]:
    """The packages of the extra `demo` that are not installed."""
    absent = lambda module: importlib.util.find_spec(module) is None
    return [package for module, package in EXTRAS.items() if absent(module)]


def run(args: argparse.Namespace) -> int:
    """Run the demonstration; the exit code is 1 if the training diverges."""
    # Both need the extra `demo`.
    from . import digits, picture

    train, test = digits.load()
    rate = args.learning_rate or training.CHOICES[args.optimizer].learning_rate
    print(
        f"{args.optimizer} on {len(train.labels):,} handwritten digits: {args.steps}"
        f" steps of {training.BATCH}, learning rate {rate:g}",
        flush=True,
    )
    tx = training.optimizer(args.optimizer, rate, args.steps)
    started = time.perf_counter()
    reports = _follow(training.train(tx, train, test, args.steps, args.seed), args)
    seconds = time.perf_counter() - started
    if _diverged(reports[-1]):
        hint = "try a smaller --learning-rate"
        print(
            f"the loss is not finite at step {reports[-1].step}: {hint}",
            file=sys.stderr,
        )
        return 1
    score = f"test accuracy {100 * reports[-1].test_accuracy:.1f} %"
    picture.draw(reports, f"{args.optimizer} on handwritten digits: {score}", args.out)
    print(f"trained in {seconds:.1f} s; loss, accuracy and learning rate: {args.out}")
    print(score)
    return 0


def _follow(training, args):
    from .display import open_display

    reports = []
    with open_display(args.steps) as show:
        for report in training:
            reports.append(report)
            show(report)
            if _diverged(report):
                break
    return reports


def _diverged(report):
    return not np.isfinite(report.trace.loss).all()
