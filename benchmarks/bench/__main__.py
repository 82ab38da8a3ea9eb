"""The command `python -m benchmarks.bench`: its options."""

import argparse
import math
import sys

from examples.demo.arguments import file
from stepax.__main__ import exit_code, number, positive

from . import command
from .shapes import SHAPES


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark with `argv`, by default `sys.argv`; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    args = _parser().parse_args(argv)
    args.command = argv
    return exit_code(command.run, args)


def _parser():
    shapes = (f"  {name:10}{shape.what}" for name, shape in SHAPES.items())
    parser = argparse.ArgumentParser(
        "python -m benchmarks.bench",
        description=_BENCH,
        epilog="\n".join(["trees of parameters:", *shapes]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--only", metavar="WORD", default="*", help=_ONLY)
    add("--shapes", metavar="TREE", nargs="+", choices=list(SHAPES), help=_SHAPES)
    add("--quick", action="store_true", help=_QUICK)
    add("--rounds", metavar="N", type=positive(int), default=9, help=_ROUNDS)
    add("--interval", metavar="PERCENT", type=positive(float), default=5.0, help=_WIDE)
    add("--seconds", metavar="S", type=_at_least_0, default=8.0, help=_SECONDS)
    add("--json", metavar="FILE", type=file(".json"), help=_JSON)
    add("--from", metavar="FILE", type=file(".json"), dest="from_file", help=_FROM)
    add(
        "--png",
        metavar="FILE",
        type=file(".png"),
        default="stepax-bench.png",
        help=_CHART,
    )
    add("--markdown", metavar="FILE", type=file(".md"), help="write the tables there")
    return parser


def _at_least_0(text):
    value = number(float, text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"expected 0 or more, got {text}")
    return value


_BENCH = """\
Measure the cost of a step, compared with Optax and PyTorch.

Stepax and, if installed, Optax and PyTorch take the same steps on the same data in
one process, in another order in each round.  Shown are medians over the rounds,
and the medians of the ratios of each round: below 1, Stepax is faster.  Trust the
ratios; milliseconds depend on the load of the machine.  "In one" is `stepax.step`,
the others call `update` and `apply_updates`.

If you have ten minutes, say what you want to know:

  python -m benchmarks.bench --only adamw --shapes large
  python -m benchmarks.bench --only "clip*" --shapes small --json mine.json

Rounds go on until the interval of each ratio is narrow: from order statistics, it
covers the median with 95 %.  They end without that after --seconds, or after 100;
the ratio is then marked by ~.  Ctrl-C shows what has been measured; the same
--json goes on from there.

A whole run takes about half an hour on two idle cores and 4 GB of memory, one with
--quick about five minutes."""
_ONLY = "only transformations whose name contains this word, or matches this pattern"
_SHAPES = "only these trees of parameters, see below (default: all)"
_ROUNDS = "at least so many rounds of steps (default: %(default)s)"
_WIDE = "until intervals are narrower than this (default: %(default)g)"
_SECONDS = (
    "then at most this long for each case; also for compiling (default: %(default)g)"
)
_QUICK = "trees an eighth as wide, to check that it works; ratios mean little then"
_JSON = "store all rounds in this file; the next run with it continues from there"
_FROM = "measure nothing, and show the results in this file"
_CHART = "the bar chart to write, a PNG (default: %(default)s)"


if __name__ == "__main__":
    sys.exit(main())
