"""Train a small network on handwritten digits and draw its progress."""

import argparse
import functools as ft
import sys
import time

import numpy as np

from stepax.__main__ import exit_code, one_of, positive

from . import digits, picture, training
from .arguments import file, seed
from .display import open_display


def main(argv: list[str] | None = None) -> int:
    """Train as `argv` says, by default `sys.argv`; returns the exit code."""
    parser = argparse.ArgumentParser("python -m examples.demo", description=__doc__)
    add = parser.add_argument
    name = ft.partial(one_of, choices=training.CHOICES)
    add("--optimizer", metavar="NAME", type=name, default="adamw", help=_NAMES)
    add("--learning-rate", metavar="RATE", type=positive(float), help=_RATE)
    add("--steps", metavar="N", type=positive(int), default=600, help=_STEPS)
    add("--seed", metavar="SEED", type=seed, default=0, help=_SEED)
    add("--out", metavar="FILE", type=file(".png"), default=_PICTURE, help=_OUT)
    return exit_code(run, parser.parse_args(argv))


_PICTURE = "stepax-demo.png"
_NAMES = f"one of {', '.join(training.CHOICES)} (default: %(default)s)"
_RATE = "peak of the warm-up and cosine schedule (default: depends on the optimizer)"
_STEPS = "mini-batches to train on (default: %(default)s)"
_SEED = "seeds the initial weights and the mini-batches (default: %(default)s)"
_OUT = "the PNG to plot into (default: %(default)s)"


def run(args: argparse.Namespace) -> int:
    """Run the demonstration; the exit code is 1 if the training diverges."""
    train, test = digits.load()
    rate = args.learning_rate or training.CHOICES[args.optimizer].learning_rate
    print(
        f"{args.optimizer} on {len(train.labels):,} handwritten digits: {args.steps}"
        f" steps of {training.BATCH}, learning rate {rate:g}; compiling first ...",
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


if __name__ == "__main__":
    sys.exit(main())
