"""The command `sweep`: the demo's network at many learning rates."""

import argparse
import sys
import time

import numpy as np

import stepax

from . import network, training


def run(args: argparse.Namespace) -> int:
    """Run the sweep, and print it; the exit code is 1 if every run diverges."""
    from . import digits  # needs the extra `demo`

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
