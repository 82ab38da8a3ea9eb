"""`python -m stepax.interop.optax`: run a program with Stepax in place of Optax."""

import argparse
import os
import runpy
import sys
from collections.abc import Sequence

from ._switch import install


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a script or module under the switch, as `python` itself would.

    arguments: command line arguments; `sys.argv` by default.
    """
    given = _parser().parse_args(arguments)
    install()
    sys.argv = [given.target, *given.args]
    if given.module:
        runpy.run_module(given.target, run_name="__main__", alter_sys=True)
        return
    sys.path[0] = os.path.dirname(os.path.abspath(given.target))
    runpy.run_path(given.target, run_name="__main__")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m stepax.interop.optax",
        description="Run a program in which `import optax` imports Stepax, including "
        "in the libraries it uses.",
    )
    parser.add_argument(
        "-m", dest="module", action="store_true", help="the target is a module"
    )
    parser.add_argument("target", help="a script, or a module after -m")
    parser.add_argument(
        "args", nargs=argparse.REMAINDER, help="arguments of the program"
    )
    return parser
