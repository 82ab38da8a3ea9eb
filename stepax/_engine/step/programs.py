"""Programs outside of `jit`, compiled once for all values of their hyperparameters.

A rule computes with Python scalars: it branches on them, and takes `1 - b1` in double
precision before anything is rounded.  So a rule is traced for each value, which becomes
a literal of the trace.  Inside of `jit` that is all.  Outside, where each leaf is a
program of its own, literals would lead to one compilation per value.  Here they are
lifted out of the trace and passed as arguments, and traces that differ in nothing else
share one compiled program.  Nothing that is shared holds a function or an array.
"""

import functools as ft
import itertools as it
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ..base.protocol import ArrayTree
from .literals import NotShareable, Program, lift_literals


if TYPE_CHECKING:
    from jax.stages import Traced


# How many compiled programs are kept for optimizers that are yet to be made; each
# optimizer also keeps its own.
KEPT = 512

# To start a program takes longer than a small array does.  So many calls, with so many
# elements at most in an array, run as one, which hardly takes longer to compile.
TOGETHER = 16
SMALL = 2**16


class Origin(NamedTuple):
    """The call of a factory that made a rule, whose arguments are arrays and constants.

    key: equal for calls that differ only in the values of these arrays.
    arrays: the arguments that are arrays.
    """

    key: object
    arrays: tuple[jax.Array, ...]


class Shared:
    """A function that is jitted inside of `jit`, and shares its programs outside.

    origins: of the rules that it runs.  If all are known, a trace serves for other
        arrays, too: `inject_hyperparams` makes an optimizer of new ones at each step.
    """

    def __init__(self, f: Callable, kind: str, origins: Sequence[Origin | None]):
        self.jitted = jax.jit(f)
        known = [origin for origin in origins if origin is not None]
        self.arrays = [x for origin in known for x in origin.arrays]
        self.own: dict[tuple, _Run | None] = {}
        self.all = self.own
        if len(known) == len(origins):
            self.all = _runs(kind, tuple(origin.key for origin in known))

    def __call__(self, *args: ArrayTree) -> ArrayTree:
        if any(isinstance(x, Tracer) for x in jax.tree.leaves(args)):
            return self.jitted(*args)
        calls = Calls(self)
        calls.add(0, *args)
        return calls.results()[0]

    def run(self, key: tuple, args: tuple, inputs: int) -> "_Run | None":
        """The program for some types; `None` if it keeps to itself."""
        for runs in (self.own, self.all):
            if key in runs:
                return runs[key]
        self._trace(key, args, inputs)
        return self.run(key, args, inputs)

    def _trace(self, key: tuple, args: tuple, inputs: int) -> None:
        traced = self.jitted.trace(*args)
        # Otherwise constants could become tracers, which must not outlive their trace.
        with jax.ensure_compile_time_eval():
            run = _run_of(traced, inputs, self.arrays)
        # What keeps an array of its own is not shared, or the array would live on.
        keeps_none = run is not None and not run.consts
        (self.all if keeps_none else self.own)[key] = run


# Bounded: a search over hyperparameters makes calls without end.
@ft.lru_cache(maxsize=64)
def _runs(kind: str, origins: tuple) -> dict:
    """The programs of rules that were made by equal calls."""
    return {}


# By identity, of which there is one for each kind of call.
@dataclass(frozen=True, eq=False)
class _Run:
    """A compiled program, and what it takes besides its inputs.

    arrays: the indices of arrays among those of the factory calls, if all that the
        rules close over are among them.
    consts: otherwise all arrays that they close over.
    vectors: the lifted literals, by dtype.
    is_small: whether to start it may take longer than to run it.
    """

    program: Callable
    rebuild: Callable[[list], ArrayTree]
    arrays: tuple[int, ...]
    consts: tuple[jax.Array, ...]
    vectors: dict[str, jax.Array]
    is_small: bool

    def __call__(self, common: list, rows: list[list], arrays: list) -> list:
        """The result for each row of inputs that follow the common ones."""
        given = [arrays[i] for i in self.arrays] or self.consts
        found = self.program([*given, *common], rows, self.vectors)
        return list(map(self.rebuild, found))


class Calls:
    """Calls of a function, of which small ones of one kind run together.

    f: the function.
    common: the first arguments of all of them.
    """

    def __init__(self, f: Shared, *common: ArrayTree):
        self.f, self.common = f, common
        self.is_off = _jit_is_off(jax.config)
        self.inputs, self.treedef = jax.tree.flatten(common)
        self.is_alone = not self.is_off and jax.sharding.get_abstract_mesh().empty
        self.is_alone = self.is_alone and not _is_traced([*self.inputs, *f.arrays])
        self.found: dict = {}
        self.runs: dict[tuple, _Run | None] = {}
        # By what may be one program, on the same devices.
        self.waiting: dict[tuple, dict] = {}

    def add(self, name: Hashable, *own: ArrayTree) -> None:
        """Call `f(*common, *own)`, now or later."""
        run, inputs = None, []
        if self.is_alone:
            inputs, treedef = jax.tree.flatten(own)
            run = None if _is_traced(inputs) else self._run(treedef, own, inputs)
        if run is None:
            args = *self.common, *own
            # Otherwise `jit` makes arrays of Python scalars.
            args = jax.tree.map(jnp.asarray, args) if self.is_off else args
            self.found[name] = self.f.jitted(*args)
        elif run.is_small:
            place = run, _all(_PLACE, inputs)
            self.waiting.setdefault(place, {})[name] = inputs
        else:
            # It need not keep what it takes until others are known.
            (self.found[name],) = run(self.inputs, [inputs], self.f.arrays)

    def _run(self, treedef, own, inputs):
        # JAX has a cache of traces, but to ask it takes longer than to run the program.
        kind = treedef, _all(_TYPE, inputs)
        if kind not in self.runs:
            first = self.treedef, _all(_TYPE, self.inputs), _settings(jax.config)
            number = len(self.inputs) + len(inputs)
            args = *self.common, *own
            self.runs[kind] = self.f.run((*first, *kind), args, number)
        return self.runs[kind]

    def results(self) -> dict:
        """What the calls return, by name."""
        for (run, *_), calls in self.waiting.items():
            names, rows = list(calls), list(calls.values())
            for part in _parts(len(rows)):
                made = run(self.inputs, rows[part], self.f.arrays)
                self.found.update(zip(names[part], made, strict=True))
        return self.found


def _parts(n: int) -> list[slice]:
    """So many calls, in parts of `TOGETHER` or of one."""
    # Of no other number, for which one more program would be compiled: which parameters
    # have a gradient may change from step to step.
    whole = n // TOGETHER * TOGETHER
    ends = [*range(0, whole, TOGETHER), *range(whole, n + 1)]
    return [slice(*x) for x in it.pairwise(ends)]


_TYPE = attrgetter("aval")
_PLACE = attrgetter("sharding", "committed")


def _all(get: Callable, inputs: list) -> tuple:
    """An attribute of all arrays of JAX, and the type of everything else."""
    try:
        return tuple(map(get, inputs))
    except AttributeError:
        is_array = lambda x: isinstance(x, jax.Array)
        return tuple(get(x) if is_array(x) else jax.typeof(x) for x in inputs)


def _is_traced(inputs: list) -> bool:
    # By types, of which there are fewer.
    return any(issubclass(kind, Tracer) for kind in set(map(type, inputs)))


# What a trace depends on besides the types of its inputs.  By name, because the type of
# `jax.config` does not list its attributes.
_settings = attrgetter(
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_numpy_rank_promotion",
    "jax_debug_nans",
)
_jit_is_off = attrgetter("jax_disable_jit")


def _run_of(traced: "Traced", inputs: int, arrays: Sequence[jax.Array]) -> _Run | None:
    """A compiled program with its literals; `None` if it cannot be shared.

    inputs: how many the function has.
    """
    # A tracer that the function closes over becomes one more input.
    if len(traced.jaxpr.jaxpr.invars) != inputs:
        return None
    try:
        program, lifted, consts = lift_literals(traced.jaxpr, _joins())
    except NotShareable:
        return None
    if any(isinstance(x, Tracer) for x in consts):
        return None
    compiled = _compiled(program, traced.fun_name)
    # One vector per dtype: each argument of a program costs time at every call.
    vectors = {dtype: jnp.asarray(np.stack(xs)) for dtype, xs in lifted.items()}
    # By identity, because to compare elements would wait for the device.
    at = {id(x): i for i, x in enumerate(arrays)}
    places = tuple(at.get(id(x), -1) for x in consts)
    rebuild = traced.out_tree.unflatten
    is_small = all(x.size <= SMALL for x in traced.jaxpr.in_avals)
    if -1 in places:  # an array that was computed when the rule was made
        return _Run(compiled, rebuild, (), tuple(consts), vectors, is_small)
    return _Run(compiled, rebuild, places, (), vectors, is_small)


@ft.lru_cache(maxsize=KEPT)
def _compiled(program: Program, name: str) -> Callable:
    def run(given, rows, vectors):
        lifted = {dtype: list(xs) for dtype, xs in vectors.items()}
        return [program.run([*given, *row], lifted) for row in rows]

    # For profiles, in which it would be `run`.
    run.__name__ = run.__qualname__ = name
    return jax.jit(run)


@ft.cache
def _joins() -> bool:
    """Whether XLA computes x * a * b as x * (a * b), which rounds differently."""
    # Tried out, because it depends on the version of XLA and on the backend.
    a, b, x = np.float32(0.3), np.float32(0.7), np.linspace(1, 2, 64, dtype=np.float32)
    return jax.jit(lambda x: x * a * b)(x).tobytes() == (x * (a * b)).tobytes()
