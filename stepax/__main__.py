"""The command line: `python -m stepax COMMAND`."""

import argparse
import difflib
import math
import os
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from ._plan import AXES, MODELS, size


def main(argv: list[str] | None = None) -> int:
    """Run the command in `argv`, by default `sys.argv`; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m stepax",
        description="Stepax: gradient processing and optimization in JAX.",
        epilog="In a clone, `make demo` trains a network and `make bench` measures.",
    )
    parser.set_defaults(home=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_plan(commands)
    _add_diagnose(commands)
    args = parser.parse_args(argv)
    if args.home is None:
        parser.print_help()
        return 0
    return exit_code(import_module(f".{args.home}.command", "stepax").run, args)


def _add_plan(commands):
    summary = "the memory that an optimizer takes on many devices"
    sizes = (f"  {name:14}{size(model) / 1e9:6.1f} B" for name, model in MODELS.items())
    parser = commands.add_parser(
        "plan",
        help=summary,
        description=f"T{summary[1:]}.{_PLAN}",
        epilog="\n".join(["models, and their parameters:", *sizes]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(home="_plan")
    add = parser.add_argument
    add("--model", metavar="NAME", choices=list(MODELS), default="llama-8b", help=_OF)
    add("--devices", metavar="N", type=positive(int), help=_DEVICES)
    add("--mesh", metavar="AXES", type=_mesh, help=_MESH)
    add("--optimizer", metavar="NAME", type=_planned, default="adamw", help=_PLANNED)
    add("--zero", action="store_true", help=_ZERO)
    add("--bits", type=int, choices=(4, 8), help="store moving averages in few bits")
    add("--masters", action="store_true", help=_MASTERS)
    add("--offload", action="store_true", help="keep the state in host memory")
    add("--json", action="store_true", help="print JSON instead of tables")


_PLAN = """

Nothing is allocated and no devices are needed: the initial state is traced on a
mesh that does not exist.  The figures are exact, for one device, and without the
activations of the model.

Start with the model and the number of devices:

  python -m stepax plan --model llama-70b --devices 512 --optimizer muon

Parameters, gradients and state are then sharded along one axis, `data`.  With
--zero the parameters are replicated, and only the state is sharded.
With --mesh data=64,model=8 matrices are sharded along both axes."""
_OF = "the model, see below (default: %(default)s)"
_DEVICES = "number of devices (default: those of --mesh, or 8)"
_MESH = "sizes of the axes data, model and expert, as in data=64,model=8"
_PLANNED = "an optimizer, such as adamw, lion, muon or soap (default: %(default)s)"
_ZERO = "replicated parameters, with the state sharded (ZeRO-1)"
_MASTERS = "bfloat16 parameters and gradients, with float32 master weights in the state"


def _add_diagnose(commands):
    summary = "mistakes in an optimizer that raise no error"
    parser = commands.add_parser(
        "diagnose",
        help=summary,
        description="Looks for m" + summary[1:] + ".  Exits with 1 if it finds any.",
    )
    parser.set_defaults(home="_diagnose")
    add = parser.add_argument
    add("config", metavar="CONFIG.json", help="the optimizer, as of `to_config`")
    add("--params", metavar="SHAPES.json", required=True, help=_SHAPES)
    add("--steps", metavar="N", type=positive(int), help="calls of `update` in the run")


_SHAPES = (
    "the parameters: nested objects and lists of shapes such as [16, 16], or of "
    '{"shape": [16, 16], "dtype": "bfloat16"}'
)


def _planned(text):
    from ._plan import command

    return one_of(text, command.optimizers())


def _mesh(text):
    sizes = {}
    for part in text.split(","):
        name, _, n = (x.strip() for x in part.partition("="))
        if name not in AXES or name in sizes:
            raise argparse.ArgumentTypeError(
                f"expected sizes of {', '.join(AXES)}, as in data=64,model=8, got "
                f'"{part}"'
            )
        sizes[name] = positive(int)(n)
    return sizes


# --- for all commands ---------------------------------------------------------------


def exit_code(run: Callable[[argparse.Namespace], int], args: Any) -> int:
    """The result of `run`, even if Ctrl-C or a closed pipe ends it."""
    try:
        return run(args)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Keep the interpreter from flushing to the pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def one_of(text: str, choices: Iterable[str]) -> str:
    """The name of an optimizer, in any case."""
    name = text.lower()
    if name in choices:
        return name
    nearest = difflib.get_close_matches(name, choices, n=1, cutoff=0.0)[0]
    raise argparse.ArgumentTypeError(
        f'there is no optimizer "{text}" here, did you mean "{nearest}"?'
    )


def positive(kind: type) -> Callable[[str], Any]:
    """A finite `int` or `float` above 0."""

    def parse(text):
        value = number(kind, text)
        if not 0 < value < math.inf:
            raise argparse.ArgumentTypeError(f"expected more than 0, got {text}")
        return value

    return parse


def number(kind: type, text: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        noun = {int: "a whole number", float: "a number"}[kind]
        raise argparse.ArgumentTypeError(f'expected {noun}, got "{text}"') from None


if __name__ == "__main__":
    sys.exit(main())
