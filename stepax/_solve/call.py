"""What the functions of this folder do with their arguments, which mean the same."""

from collections.abc import Callable
from typing import Any, NamedTuple

from .._engine.trees import errors
from .._minimize.driver import open_box, read_length, read_limit
from .._minimize.frame import Frame, arguments_of, open_start
from .._minimize.loop import Inputs
from .._minimize.program import Program, find_program
from .._minimize.progress import run_program
from .._minimize.stop import check_tolerances
from .loop import Iteration, Run, Setup, Solved, bind


class Options(NamedTuple):
    """Arguments that all of them take."""

    args: Any
    tol: Any
    max_steps: Any
    has_aux: bool
    history: Any
    callback: Callable | None
    progress: bool


class Call(NamedTuple):
    """A program with its inputs, and what makes trees of its lists of arrays."""

    program: Program
    inputs: Inputs
    frame: Frame
    staying: list

    def params(self, xs: list) -> Any:
        """The tree of parameters."""
        return self.frame.whole(xs, self.staying)

    def so_far(self, run: Run) -> Any:
        """The tree of parameters of a state."""
        return self.params(self.program.unpack(self.inputs, run.at.x))

    def run(self, options: Options, so_far: Callable, *shown: str) -> Solved:
        """The solution; `so_far` makes the result for a callback of a state."""
        more = options.callback, options.progress, so_far, *shown
        return run_program(self.program, self.inputs, *more)


def open_call(
    name: str,
    kind: str,
    fun: Callable,
    x0: Any,
    method: Any,
    options: Options,
    number: Any = None,
    bounds: Any = None,
    project: bool = False,
) -> Call:
    """Check the arguments and find the program.

    name, kind: as in `Setup`; method: makes a `Stepper`; number: one that it takes.
    """
    if not callable(fun):
        raise TypeError(f"`{name}` is {errors.describe(fun)}, expected a function")
    frame, moving, staying = open_start(x0)
    args_frame, arrays = arguments_of(name, fun, options.args)
    box, moving = open_box(bounds, frame, moving, project)
    length = read_length(options.history, options.max_steps)
    setup = Setup(frame, args_frame, method, options.has_aux, length, name, kind)
    rules = check_tolerances(options.tol), number
    limit = read_limit(options.max_steps)
    inputs = Inputs(moving, (staying, arrays), box, rules, limit)
    program, inputs = find_program(Iteration, bind, setup, inputs, fun)
    return Call(program, inputs, frame, staying)
