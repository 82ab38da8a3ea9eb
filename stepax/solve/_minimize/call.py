"""A call of a solver: what all of them do with their arguments, which mean the same."""

import functools as ft
import operator
import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ..._engine import rules as rx
from ..._engine.functions.calls import explain_start
from .constraints import sides
from .frame import Frame, arguments_of, check_arrays, open_closure, open_start
from .loop import Inputs, Setup
from .progress import run_program
from .result import Result
from .watch import check_tolerances


class Options(NamedTuple):
    """Arguments that all solvers take."""

    args: Any
    tol: Any
    max_steps: Any
    has_aux: bool
    history: Any
    callback: Callable | None
    progress: bool


class Call:
    """A call, which `compile` completes and `run` runs.

    setup, inputs: until then without what only some solvers have.
    both: maps lists of arrays, moving and other, to the output and the aux output.
    """

    def __init__(self, name, kind, fun, x0, options: Options, bounds=None, clips=False):
        """name, kind: as in `Setup`; clips: whether to move a start to its bounds."""
        if not callable(fun):
            said = f"`{name}` is {rx.errors.describe(fun)}, expected a function"
            hint = ": the arguments of `minimize` are (fun, x0)"
            raise TypeError(said + hint if name == "fun" else said)
        self._fun, self._options = fun, options
        self._frame, moving, self._staying = open_start(x0)
        args_frame, arrays = arguments_of(name, fun, options.args)
        length = _read_length(options.history, options.max_steps)
        frames = self._frame, args_frame
        self.setup = Setup(*frames, None, options.has_aux, length, name, kind)
        box, moving = _open_box(bounds, self._frame, moving, clips, name)
        rules, limit = check_tolerances(options.tol), read_limit(options.max_steps)
        data = self._staying, arrays
        self.inputs = Inputs(moving, data, box, rules, limit)

    def compile(self, kind: Any, limited: Any = (), **more: Any) -> None:
        """Find the program of a kind of loop; more: further fields of its setup.

        limited: the functions of the constraints.
        """
        self.setup = self.setup._replace(**more)
        funs = self._fun, *limited
        self.program, self.inputs = find_program(kind, self.setup, self.inputs, *funs)
        # Rules of derivatives run after this call, when `jit` has dropped a function
        # that was made in it, and the program has no strong reference.
        held = [lambda fun=fun: fun for fun in funs]
        self.both = self.program.opened or bind(self.setup, *held)

    def run(self, finish: Callable = lambda found: found, *shown: str) -> Result:
        """The result; finish: what it goes through, as does that for the callback."""

        def so_far(run):  # whose place has the parameters first
            params = self.params(self.program.unpack(self.inputs, run.at[0]))
            numbers = run.at.value, run.at.norm, run.steps, run.evaluations, run.code
            return finish(Result(params, *numbers))

        more = self._options.callback, self._options.progress
        return finish(run_program(self.program, self.inputs, *more, so_far, *shown))

    def params(self, xs: list) -> Any:
        return self._frame.whole(xs, self._staying)


def _open_box(
    given: Any, frame: Frame, moving: list, clips: bool, name: str
) -> tuple[Any, list]:
    """The bounds of the optimized leaves, and the start clipped to them."""
    if given is None:
        return None, moving
    lower, upper = sides(given, frame, moving, name)
    params = frame.params(moving)
    from ..._optimizers import bounds as boxes  # rarely needed

    boxes.check_sides(lower, upper)
    boxes.check(lower, upper, params, clips)
    box = boxes.box_of(lower, upper, rx.Gradients(params, params), frame.live)
    return box, boxes.clip(moving, box)


def whole_number(x: Any) -> int | None:
    """A Python int, or `None` for what is not an integer that is known."""
    try:
        return operator.index(x)
    except TypeError:
        return None


def read_limit(max_steps: Any) -> Any:
    if isinstance(max_steps, Tracer):
        return max_steps.astype(jnp.int32)
    number = whole_number(max_steps)
    if number is None or number < 0:
        raise ValueError(f"`max_steps` is {max_steps!r}, expected an integer >= 0")
    return jnp.asarray(min(number, jnp.iinfo(jnp.int32).max), jnp.int32)


def _read_length(history: Any, max_steps: Any) -> int | None:
    """The number of steps to record in the history."""
    if history is False or history is None:
        return None
    length = whole_number(max_steps if history is True else history)
    if length is None or length < 1:
        raise ValueError(
            f"`history` is {history!r} and `max_steps` {max_steps!r}; the length of a "
            "history must be a positive integer, known when the program is compiled"
        )
    return length


def is_number(x: Any, holds: Callable[[Any], Any]) -> bool:
    """Whether something is a scalar for which a condition holds, if it is known."""
    is_scalar = rx.is_array(x) and jnp.shape(x) == ()
    return is_scalar and bool(isinstance(x, Tracer) or holds(np.asarray(x)))


# --- the function --------------------------------------------------------------------


def bind(setup: Setup, get: Callable, *gets: Callable) -> Callable:
    """The function that `get` returns, as a function of lists of arrays.

    It returns what the kind of `setup` says, and the auxiliary output.

    gets: callables that return the functions of the constraints, whose values are added
        to the aux.
    """

    def both(moving, data):
        staying, arrays, *limits = data
        params = setup.frame.whole(moving, staying)
        args = setup.args_frame.whole((), arrays)
        with explain_start(f"`{setup.name}`", params):
            out = get()(params, *args)
        out, aux = _split_aux(out, setup)
        found = _output(out, moving, setup)
        if setup.constraints is None:
            return found, aux
        funs = [get() for get in gets]
        return found, (aux, setup.constraints.values(funs, *limits, params, args))

    return both


def _split_aux(out: Any, setup: Setup) -> tuple:
    if not setup.has_aux:
        return out, None
    if not (isinstance(out, tuple) and len(out) == 2):
        what = "value" if setup.kind == "value" else "output"
        raise TypeError(
            f"`{setup.name}` returns {rx.errors.describe(out)}, expected a pair of its "
            f"{what} and auxiliary output, because `has_aux` is `True`"
        )
    return out


def _output(out: Any, moving: list, setup: Setup) -> Any:
    if setup.kind == "value":
        return _number(out)
    if setup.kind == "residuals":
        return _arrays(out, setup.name)
    found = _like(out, moving, setup.frame, setup.name)
    if setup.kind == "root":
        return found
    return [y - x.astype(y.dtype) for x, y in zip(moving, found, strict=True)]


def _number(value: Any) -> jax.Array:
    if not rx.is_array(value):
        raise TypeError(
            f"`fun` returns {rx.errors.describe(value)}, expected one real number; to "
            "return more, use `has_aux=True`"
        )
    # A Python int is accepted, unlike an integer array, which may be a mistake.
    value = jnp.asarray(float(value) if type(value) is int else value)
    if value.shape != () or not jnp.issubdtype(value.dtype, jnp.floating):
        raise ValueError(
            f"`fun` returns an array of shape {value.shape} and dtype {value.dtype}, "
            "expected one real number; sum it, or take the mean"
        )
    return value


def _arrays(out: Any, name: str) -> Any:
    """A tree of floating-point arrays, or an error that names the path."""
    wanted = "an array; to return more, use `has_aux=True`"
    check_arrays(out, f"`{name}`", jnp.inexact, wanted)
    if sum(map(jnp.size, jax.tree.leaves(out))) == 0:
        raise ValueError(
            f"`{name}` returns {rx.errors.describe(out)} without any number"
        )
    return jax.tree.map(jnp.asarray, out)


def _like(out: Any, moving: list, frame: Frame, name: str) -> list:
    """The arrays of a tree that must be like the parameters."""
    try:
        found = frame.pick(out)
    except (ValueError, TypeError):
        raise ValueError(
            f"`{name}` returns {rx.errors.describe(out)}, expected a tree with the "
            f"structure of its parameters, {frame.treedef}"
        ) from None
    found = _arrays(found, name)
    for i, (x, y) in enumerate(zip(found, moving, strict=True)):
        if x.shape != y.shape or jnp.iscomplexobj(x) != jnp.iscomplexobj(y):
            raise ValueError(
                f"`{name}` returns an array of shape {x.shape} and dtype {x.dtype} for "
                f"leaf {frame.live[i]} of its parameters, which has shape {y.shape} "
                f"and dtype {y.dtype}; expected as many equations as unknowns; for "
                "more equations use `least_squares`"
            )
    return found


# --- programs ------------------------------------------------------------------------
#
# They are kept for as long as the functions that they run.  A program is found by the
# identity of its function, by what decides its code, and by the types of its inputs.


class Program:
    """A solver compiled for a function, as a whole or in pieces.

    kind: the class of its loop, with the methods of `Loop`.
    both: maps lists of arrays, optimized and other, to the value and the aux output.
    opened: the same from a traced program, if the functions close over large arrays.
    """

    def __init__(self, kind: Callable, setup: Any, both: Callable, opened: Any = None):
        loop = ft.partial(kind, setup, opened or both)
        self.opened = opened
        self.begin = jax.jit(lambda inputs: loop(inputs).begin())
        self.advance = jax.jit(lambda inputs, *at: loop(inputs).advance(*at))
        self.finish = jax.jit(lambda inputs, run: loop(inputs).finish(run))
        self.unpack = jax.jit(lambda inputs, xs: loop(inputs).unpack(xs))
        self.whole = jax.jit(lambda inputs: loop(inputs).run())


# Programs, with weak references to the functions.  They live as long as the functions,
# but do not keep the functions, nor what they close over, alive.
_PROGRAMS: dict[tuple, tuple[Program, list, list]] = {}


def find_program(
    kind: Callable, setup: Setup, inputs: Inputs, *funs: Callable
) -> tuple[Program, Inputs]:
    """The program for a function, and the inputs with the tracers it closes over.

    funs: the function, and those of the constraints.
    """
    examples = inputs.moving, inputs.data
    types = tuple(map(jax.typeof, jax.tree.leaves((*examples, inputs.weights))))
    names = [(id(_owner(fun)), getattr(fun, "__func__", None)) for fun in funs]
    key = kind, setup, types, *names
    if key in _PROGRAMS:
        program, more, _ = _PROGRAMS[key]
    else:
        gets = list(map(_weak, funs))
        both = bind(setup, *gets)
        opened, more = open_closure(both, *examples)
        from_inputs = lambda moving, data: opened(moving, *data)
        program = Program(kind, setup, both, from_inputs if more else None)
        is_kept = all(isinstance(get, weakref.ref) for get in gets)
        if is_kept and not any(isinstance(x, Tracer) for x in more):
            drop = lambda _: _PROGRAMS.pop(key, None)
            owners = [weakref.ref(_owner(fun), drop) for fun in funs]
            _PROGRAMS[key] = program, more, owners
    return program, inputs._replace(data=(inputs.data, more)) if more else inputs


def _owner(fun: Callable) -> Any:
    return fun.__self__ if isinstance(fun, MethodType) else fun


def _weak(fun: Callable) -> Callable:
    """A callable that returns a function without keeping it alive."""
    try:
        is_method = isinstance(fun, MethodType)
        return weakref.WeakMethod(fun) if is_method else weakref.ref(fun)
    except TypeError:  # some callables have no weak references
        return lambda: fun
