"""Compiled programs, kept for as long as the functions that they run.

A program is found by the identity of its function, by what decides its code, and by the
types of its inputs.
"""

import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any

import jax
from jax.core import Tracer

from .closure import open_closure
from .loop import Inputs


class Program:
    """A solver compiled for a function, as a whole or in pieces.

    kind: the class of its loop, with the methods of `Loop`.
    both: maps lists of arrays, optimized and other, to the value and the aux output.
    """

    def __init__(self, kind: Callable, setup: Any, both: Callable):
        loop = lambda inputs: kind(setup, both, inputs)
        self.both = both
        self.begin = jax.jit(lambda inputs: loop(inputs).begin())
        self.advance = jax.jit(lambda inputs, *at: loop(inputs).advance(*at))
        self.finish = jax.jit(lambda inputs, run: loop(inputs).finish(run))
        self.unpack = jax.jit(lambda inputs, xs: loop(inputs).unpack(xs))
        self.whole = jax.jit(lambda inputs: loop(inputs).run())


# Programs by the identity of their functions.  They live as long as the functions, but
# do not keep the functions, nor what they close over, alive.
_SHELVES: dict[int, tuple[Any, dict]] = {}


def find_program(
    kind: Callable,
    bind: Callable,
    setup: Any,
    inputs: Inputs,
    fun: Callable,
    limited: list[Callable] = [],  # noqa: B006 (it is only read)
) -> tuple[Program, Inputs]:
    """The program for a function, and the inputs with the tracers it closes over.

    bind: makes of `setup` and of callables that return the functions, `fun` first, what
        `Program` calls `both`.
    setup: what decides the code besides the functions, with a hash.
    limited: further functions, those of the constraints.
    """
    get, shelf = _shelf(fun)
    examples = inputs.moving, inputs.data
    shapes = (*examples, inputs.weights)
    types = tuple(map(jax.typeof, jax.tree.leaves(shapes)))
    gets = tuple(map(_weak, limited))
    key = getattr(fun, "__func__", None), kind, setup, types, gets
    if key in shelf:
        program, more = shelf[key]
        return program, _with(inputs, more)
    both = bind(setup, get, *gets)
    opened, more = open_closure(both, *examples)
    if more:
        both = lambda moving, data: opened(moving, *data)
    found = Program(kind, setup, both), more
    is_kept = all(isinstance(get, weakref.ref) for get in gets)
    if is_kept and not any(isinstance(x, Tracer) for x in more):
        shelf[key] = found
        for other in map(_owner, limited):
            weakref.finalize(other, _forget, id(_owner(fun)), key).atexit = False
    return found[0], _with(inputs, more)


def _with(inputs: Inputs, more: list) -> Inputs:
    return inputs._replace(data=(inputs.data, more)) if more else inputs


def _shelf(fun: Callable) -> tuple[Callable, dict]:
    """A weak reference to a function, and the dict of its programs."""
    owner = _owner(fun)
    name = id(owner)
    try:
        found = weakref.ref(owner, lambda _: _SHELVES.pop(name, None))
    except TypeError:  # some callables have no weak references
        return lambda: fun, {}
    return _weak(fun), _SHELVES.setdefault(name, (found, {}))[1]


def _owner(fun: Callable) -> Any:
    return fun.__self__ if isinstance(fun, MethodType) else fun


def _forget(name: int, key: tuple) -> None:
    """Drop a program, because the function of one of its constraints is gone."""
    _SHELVES.get(name, (None, {}))[1].pop(key, None)


def _weak(fun: Callable) -> Callable:
    """A callable that returns a function without keeping it alive."""
    try:
        is_method = isinstance(fun, MethodType)
        return weakref.WeakMethod(fun) if is_method else weakref.ref(fun)
    except TypeError:
        return lambda: fun
