"""The command line: `python -m stepax COMMAND`."""

import argparse
import difflib
import math
import os
import sys
from pathlib import Path

from ._bench.shapes import SHAPES
from ._demo import command as demo, sweep
from ._demo.training import CHOICES
from ._plan.models import AXES, MODELS, size


def main(argv: list[str] | None = None) -> int:
    """Run the command in `argv`, by default `sys.argv`; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m stepax",
        description="Stepax: gradient processing and optimization in JAX.",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_demo(commands)
    _add_sweep(commands)
    _add_bench(commands)
    _add_plan(commands)
    args = parser.parse_args(argv)
    args.command = sys.argv[1:] if argv is None else argv
    if not hasattr(args, "run"):
        parser.print_help()
        return 0
    try:
        return args.run(args)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader closed the pipe; keep the interpreter from flushing to it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _add_demo(commands):
    summary = "train a small network on handwritten digits and draw its progress"
    parser = commands.add_parser("demo", help=summary, description=summary)
    parser.set_defaults(run=_run_demo)
    add = parser.add_argument
    add("--optimizer", metavar="NAME", type=_optimizer, default="adamw", help=_names())
    add("--learning-rate", metavar="RATE", type=_positive(float), help=_RATE)
    add("--steps", metavar="N", type=_positive(int), default=600, help=_STEPS)
    add("--seed", metavar="SEED", type=_seed, default=0, help=_SEED)
    add(
        "--out",
        metavar="FILE",
        type=_file(".png"),
        default="stepax-demo.png",
        help=_OUT,
    )


_RATE = "peak of the warm-up and cosine schedule (default: depends on the optimizer)"
_STEPS = "mini-batches to train on (default: %(default)s)"
_SEED = "seeds the initial weights and the mini-batches (default: %(default)s)"
_OUT = "the picture to write, a PNG (default: %(default)s)"


def _names():
    return f"one of {', '.join(CHOICES)} (default: %(default)s)"


def _add_sweep(commands):
    summary = "train the demo's network at many learning rates, in one program each"
    parser = commands.add_parser(
        "sweep",
        help=summary,
        description=f"T{summary[1:]}.{_SWEEP}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_run_sweep)
    add = parser.add_argument
    add("--optimizer", metavar="NAMES", type=_optimizers, default="adamw", help=_LIST)
    add("--lowest", metavar="RATE", type=_positive(float), default=1e-4, help=_LOWEST)
    add("--highest", metavar="RATE", type=_positive(float), default=1.0, help=_HIGHEST)
    add("--rates", metavar="N", type=_positive(int), default=13, help=_RATES)
    add("--seeds", metavar="N", type=_positive(int), default=2, help=_SEEDS)
    add("--steps", metavar="N", type=_positive(int), default=100, help=_STEPS)
    add("--png", metavar="FILE", type=_file(".png"), help=_CURVES)
    add("--file", metavar="FILE", type=_file(".npz"), help=_FILE)


_SWEEP = """

Each run has a warm-up, a cosine schedule and clipping, as in `demo`.  With the default
arguments it takes half a minute to two minutes for each optimizer on two cores, most of
it in proportion to rates, seeds and steps."""
_LIST = "one or more of those of `demo`, separated by commas (default: %(default)s)"
_LOWEST = "lowest peak of the schedule (default: %(default)s)"
_HIGHEST = "highest peak of the schedule (default: %(default)s)"
_RATES = "number of rates, evenly on a logarithmic axis (default: %(default)s)"
_SEEDS = "number of runs of each rate, with different seeds (default: %(default)s)"
_CURVES = "draw loss against rate there, a PNG"
_FILE = "store the losses in this .npz; the same sweep continues from there"


def _add_bench(commands):
    summary = "measure the cost of a step, compared with Optax and PyTorch"
    shapes = (f"  {name:10}{shape.what}" for name, shape in SHAPES.items())
    parser = commands.add_parser(
        "bench",
        help=summary,
        description=f"M{summary[1:]}.{_BENCH}",
        epilog="\n".join(["trees of parameters:", *shapes]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_run_bench)
    add = parser.add_argument
    add("--only", metavar="WORD", default="*", help=_ONLY)
    add("--shapes", metavar="TREE", nargs="+", choices=list(SHAPES), help=_SHAPES)
    add("--quick", action="store_true", help=_QUICK)
    add("--rounds", metavar="N", type=_positive(int), default=9, help=_ROUNDS)
    add("--interval", metavar="PERCENT", type=_positive(float), default=5.0, help=_WIDE)
    add("--seconds", metavar="S", type=_at_least_0, default=8.0, help=_SECONDS)
    add("--json", metavar="FILE", type=_file(".json"), help=_JSON)
    add("--from", metavar="FILE", type=_file(".json"), dest="from_file", help=_FROM)
    add(
        "--png",
        metavar="FILE",
        type=_file(".png"),
        default="stepax-bench.png",
        help=_CHART,
    )
    add("--markdown", metavar="FILE", type=_file(".md"), help="write the tables there")


_BENCH = """

Stepax and, if installed, Optax and PyTorch take the same steps on the same data in
one process, in another order in each round.  Shown are medians over the rounds,
and the medians of the ratios of each round: below 1, Stepax is faster.  Trust the
ratios; milliseconds depend on the load of the machine.  "In one" is `stepax.step`,
the others call `update` and `apply_updates`.

If you have ten minutes, say what you want to know:

  python -m stepax bench --only adamw --shapes large
  python -m stepax bench --only "clip*" --shapes small --json mine.json

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


def _add_plan(commands):
    summary = "what a step needs on many devices: memory, communication, work"
    sizes = (f"  {name:14}{size(model) / 1e9:6.1f} B" for name, model in MODELS.items())
    parser = commands.add_parser(
        "plan",
        help=summary,
        description=f"W{summary[1:]}.{_PLAN}",
        epilog="\n".join(["models, and their parameters:", *sizes]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_run_plan)
    add, number = parser.add_argument, _positive(float)
    add("--model", metavar="NAME", choices=list(MODELS), default="llama-8b", help=_OF)
    add("--devices", metavar="N", type=_positive(int), help=_DEVICES)
    add("--mesh", metavar="AXES", type=_mesh, help=_MESH)
    add("--optimizer", metavar="NAME", type=_planned, default="adamw", help=_PLANNED)
    add("--zero", action="store_true", help=_ZERO)
    add("--bits", type=int, choices=(4, 8), help="store moving averages in few bits")
    add("--masters", action="store_true", help=_MASTERS)
    add("--offload", action="store_true", help="keep the state in host memory")
    add("--bandwidth", metavar="GB/s", type=number, default=50.0, help=_LINKS)
    add("--memory-bandwidth", metavar="GB/s", type=number, default=3350.0, help=_HBM)
    add("--host-bandwidth", metavar="GB/s", type=number, default=50.0, help=_HOST)
    add("--teraflops", metavar="N", type=number, default=100.0, help=_FLOPS)
    add("--json", action="store_true", help="print JSON instead of tables")


_PLAN = """

Nothing is allocated and no devices are needed: a step is traced on a mesh that
does not exist.  The figures are those of one device and of the optimizer alone,
without the model's own forward and backward pass.

Start with the model and the number of devices:

  python -m stepax plan --model llama-70b --devices 512 --optimizer muon

Parameters, gradients and state are then sharded along one axis, `data`.  With
--zero the parameters are whole on each device, and only the state and the step
are sharded.  With --mesh data=64,model=8 matrices are sharded along both axes."""
_OF = "the model, see below (default: %(default)s)"
_DEVICES = "number of devices (default: those of --mesh, or 8)"
_MESH = "sizes of the axes data, model and expert, as in data=64,model=8"
_PLANNED = "an optimizer, such as adamw, lion, muon or soap (default: %(default)s)"
_ZERO = "whole parameters on each device, and the state sharded (ZeRO-1)"
_MASTERS = "bfloat16 parameters and gradients, with float32 masters in the state"
_LINKS = "rate at which a device sends to others (default: %(default)g)"
_HBM = "rate of the memory of a device (default: %(default)g)"
_HOST = "rate between a device and host memory (default: %(default)g)"
_FLOPS = "10^12 operations per second of a device (default: %(default)g)"


def _run_plan(args):
    from ._plan import command

    return command.run(args)


def _planned(text):
    from ._plan import command

    return _one_of(text, command.optimizers())


def _mesh(text):
    sizes = {}
    for part in text.split(","):
        name, _, n = (x.strip() for x in part.partition("="))
        if name not in AXES or name in sizes:
            raise argparse.ArgumentTypeError(
                f"expected sizes of {', '.join(AXES)}, as in data=64,model=8, got "
                f'"{part}"'
            )
        sizes[name] = _positive(int)(n)
    return sizes


def _run_bench(args):
    from ._bench import command

    return command.run(args)


def _run_demo(args):
    return _lacks_extras("demo") or demo.run(args)


def _run_sweep(args):
    return _lacks_extras("sweep") or sweep.run(args)


def _lacks_extras(command):
    """The exit code if a package is missing that a command needs, otherwise 0."""
    missing = demo.missing_extras()
    if missing:
        print(
            f'the {command} needs {", ".join(missing)}: pip install "stepax[demo]"',
            file=sys.stderr,
        )
    return 2 if missing else 0


def _optimizers(text):
    return [_optimizer(name.strip()) for name in text.split(",")]


def _optimizer(text):
    return _one_of(text, CHOICES)


def _one_of(text, choices):
    name = text.lower()
    if name in choices:
        return name
    nearest = difflib.get_close_matches(name, choices, n=1, cutoff=0.0)[0]
    raise argparse.ArgumentTypeError(
        f'there is no optimizer "{text}" here, did you mean "{nearest}"?'
    )


def _positive(kind):
    def parse(text):
        number = _parse(kind, text)
        if not 0 < number < math.inf:
            raise argparse.ArgumentTypeError(f"expected more than 0, got {text}")
        return number

    return parse


def _at_least_0(text):
    number = _parse(float, text)
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"expected 0 or more, got {text}")
    return number


def _seed(text):
    number = _parse(int, text)
    if not 0 <= number < 2**32:
        raise argparse.ArgumentTypeError(f"expected 0 to 2**32 - 1, got {text}")
    return number


def _parse(kind, text):
    try:
        return kind(text)
    except ValueError:
        noun = {int: "a whole number", float: "a number"}[kind]
        raise argparse.ArgumentTypeError(f'expected {noun}, got "{text}"') from None


def _file(suffix):
    def parse(text):
        path = Path(text)
        if path.suffix.lower() != suffix:
            raise argparse.ArgumentTypeError(
                f"expected a name ending in {suffix}, got {text}"
            )
        if not path.absolute().parent.is_dir():
            raise argparse.ArgumentTypeError(f"there is no folder {path.parent}")
        return path

    return parse


if __name__ == "__main__":
    sys.exit(main())
