"""Train the demonstration's network at many learning rates, in one program each.

Each run has a warm-up, a cosine schedule and clipping, as in the demonstration.  With
the default arguments it takes half a minute to two minutes for each optimizer on two
cores, most of it in proportion to rates, seeds and steps.
"""

import argparse
import sys
import time

import numpy as np

import stepax
from stepax.__main__ import exit_code, one_of, positive

from . import digits, network, training
from .arguments import file


def main(argv: list[str] | None = None) -> int:
    """Sweep as `argv` says, by default `sys.argv`; returns the exit code."""
    parser = argparse.ArgumentParser(
        "python -m examples.demo.sweep",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--optimizer", metavar="NAMES", type=_names, default="adamw", help=_LIST)
    add("--lowest", metavar="RATE", type=positive(float), default=1e-4, help=_LOWEST)
    add("--highest", metavar="RATE", type=positive(float), default=1.0, help=_HIGHEST)
    add("--rates", metavar="N", type=positive(int), default=13, help=_RATES)
    add("--seeds", metavar="N", type=positive(int), default=2, help=_SEEDS)
    add("--steps", metavar="N", type=positive(int), default=100, help=_STEPS)
    add("--png", metavar="FILE", type=file(".png"), help=_CURVES)
    add("--file", metavar="FILE", type=file(".npz"), help=_FILE)
    return exit_code(run, parser.parse_args(argv))


_LIST = "optimizers of the demo, separated by commas (default: %(default)s)"
_LOWEST = "lowest peak of the schedule (default: %(default)s)"
_HIGHEST = "highest peak of the schedule (default: %(default)s)"
_RATES = "number of learning rates, evenly on a logarithmic axis (default: %(default)s)"
_SEEDS = "number of seeds for each learning rate (default: %(default)s)"
_STEPS = "mini-batches to train on (default: %(default)s)"
_CURVES = "plot the loss against the learning rate in this PNG"
_FILE = "store the losses in this .npz; the same sweep continues from there"


def _names(text):
    return [one_of(name.strip(), training.CHOICES) for name in text.split(",")]


def run(args: argparse.Namespace) -> int:
    """Run the sweep, and print it; the exit code is 1 if every run diverges."""
    if args.lowest > args.highest:
        said = f"--lowest {args.lowest:g} is above --highest {args.highest:g}"
        print(said, file=sys.stderr)
        return 2
    names = list(dict.fromkeys(args.optimizer))
    rates = np.geomspace(args.lowest, args.highest, args.rates)
    grid = {"optimizer": names, "learning_rate": [float(f"{x:.3g}") for x in rates]}
    count = f"{len(names) * args.rates * args.seeds} runs of {args.steps} steps"
    print(f"{', '.join(names)} on handwritten digits: {count}", flush=True)
    begin = time.perf_counter()
    try:
        result = sweep(digits.load()[0], grid, args)
    except ValueError as error:  # the file of another sweep
        print(error, file=sys.stderr)
        return 2
    seconds = time.perf_counter() - begin
    _show(result)
    print(f"{count} took {seconds:.0f} s, compilation included")
    for name in names:
        print(f"{name}: {_found(result.select(optimizer=name))}")
    if args.png:
        result.plot(args.png)
        print(f"loss against learning rate: {args.png}")
    return 0 if result.best else 1


def sweep(data, grid, args):
    """The sweep of a grid of `optimizer` and `learning_rate` on the digits."""
    draw = training.draw_from(data)
    loss = lambda params, key: training.loss(params, *draw(key))[0]
    make_tx = lambda optimizer, learning_rate: training.optimizer(
        optimizer, learning_rate, args.steps
    )
    seeds, path = args.seeds, args.file
    more = {"seeds": seeds, "path": path, "progress": True}
    return stepax.sweep(loss, network.init, make_tx, grid, args.steps, **more)


def _found(result):
    if result.best is None:
        return "every run diverged, try lower rates"
    best, suggestion = result.best["learning_rate"], result.suggestion["learning_rate"]
    share = f"{100 * result.margin:g} %"
    return (
        f"lowest loss {result.scores.min():.4g} at the rate {best:g}; the largest "
        f"rate within {share} of it is {suggestion:g}"
    )


def _show(result):
    if not sys.stdout.isatty():
        print(result.table())
        return
    from rich.console import Console

    Console().print(result)


if __name__ == "__main__":
    sys.exit(main())
