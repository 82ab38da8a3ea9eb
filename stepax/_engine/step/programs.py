"""Programs outside of `jit`, compiled once for all values of their hyperparameters.

A rule computes with Python's numbers: it branches on them, and takes `1 - b1` in double
precision before anything is rounded.  So each value is traced, and in what is traced it
is a literal.  Inside of `jit` that is all.  Outside, where each leaf is a program of
its own, literals would make a program for each value: here they are taken out of what
was traced and given to it as an argument, and programs that are equal but for them
share what was compiled.  Nothing that is shared holds a function or an array.
"""

import functools as ft
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .literals import NotShareable, Program, take_out


# How many compiled programs are kept for optimizers that are still to be made; every
# optimizer keeps its own besides.
KEPT = 512


class Origin(NamedTuple):
    """The call of a factory that made a rule, in which all else are constants.

    key: equal for calls that differ in the values of these arrays alone.
    arrays: the arguments that are arrays.
    """

    key: Any
    arrays: tuple[jax.Array, ...]


class Shared:
    """A function that is jitted inside of `jit`, and shares its programs outside.

    origins: of what the function does; with them, what was traced once serves for
        other arrays, too, as `inject_hyperparams` has at each step.  `None` if they
        are not all known.
    """

    def __init__(self, f: Callable, kind: str, origins: Sequence[Origin | None]):
        self.jitted = jax.jit(f)
        known = [origin for origin in origins if origin is not None]
        self.arrays = [x for origin in known for x in origin.arrays]
        self.own: dict[tuple, _Run | None] = {}
        self.all = self.own
        if len(known) == len(origins):
            self.all = _runs(kind, tuple(origin.key for origin in known))

    def __call__(self, *args: Any) -> Any:
        inputs, treedef = jax.tree.flatten(args)
        if not _is_alone([*inputs, *self.arrays]):
            if _is_jit_off():  # otherwise `jit` makes arrays of Python's numbers
                args = treedef.unflatten(map(jnp.asarray, inputs))
            return self.jitted(*args)
        # To ask JAX, which knows what it traced, takes longer than to run the program.
        key = treedef, tuple(map(_type, inputs)), _settings()
        for runs in (self.own, self.all):
            if key in runs:
                run = runs[key]
                return self.jitted(*args) if run is None else run(inputs, self.arrays)
        self._trace(key, args)
        return self(*args)

    def _trace(self, key: tuple, args: tuple) -> None:
        traced = self.jitted.trace(*args)
        # Constants may be met in a trace, of which nothing may be kept.
        with jax.ensure_compile_time_eval():
            run = _run_of(traced, len(jax.tree.leaves(args)), self.arrays)
        keeps_none = run is not None and not run.consts
        (self.all if keeps_none else self.own)[key] = run


@ft.lru_cache(maxsize=64)
def _runs(kind: str, origins: tuple) -> dict:
    """Programs for what came from equal calls."""
    return {}


@dataclass(frozen=True)
class _Run:
    """A compiled program, and what it takes besides its inputs.

    arrays: which of the arrays of a rule, by their indices.
    consts: all other arrays that the rule closes over, which are its own.
    vectors: the numbers that were taken out, by dtype.
    """

    program: Callable
    out_tree: Any
    arrays: tuple[int, ...]
    consts: tuple[jax.Array, ...]
    vectors: dict[str, jax.Array]

    def __call__(self, inputs: list, arrays: list) -> Any:
        given = [arrays[i] for i in self.arrays] or self.consts
        return self.out_tree.unflatten(self.program([*given, *inputs], self.vectors))


def _type(x: Any) -> Any:  # `typeof` also looks up what an array has at hand
    return x.aval if isinstance(x, jax.Array) else jax.typeof(x)


def _settings() -> tuple:
    """What decides, besides the types, what is traced."""
    now: Any = jax.config  # its type does not name them
    return (
        now.jax_enable_x64,
        now.jax_default_matmul_precision,
        now.jax_default_prng_impl,
        now.jax_threefry_partitionable,
        now.jax_numpy_rank_promotion,
        now.jax_debug_nans,
    )


def _is_jit_off() -> bool:
    settings: Any = jax.config  # its type does not name them
    return settings.jax_disable_jit


def _is_alone(inputs: list) -> bool:
    """Whether a program runs right away, without a `jit` or a mesh around it."""
    if _is_jit_off() or any(isinstance(x, Tracer) for x in inputs):
        return False
    return jax.sharding.get_abstract_mesh().empty


def _run_of(traced: Any, inputs: int, arrays: list) -> _Run | None:
    """A compiled program with its numbers; `None` if it cannot be shared.

    inputs: how many the function has.
    """
    # A tracer that the function closes over becomes one more input.
    if len(traced.jaxpr.jaxpr.invars) != inputs:
        return None
    try:
        program, numbers, consts = take_out(traced.jaxpr, _joins())
    except NotShareable:
        return None
    if any(isinstance(x, Tracer) for x in consts):
        return None
    compiled = _compiled(program, traced.fun_name)
    vectors = {dtype: jnp.asarray(np.stack(xs)) for dtype, xs in numbers.items()}
    at = {id(x): i for i, x in enumerate(arrays)}
    places = tuple(at.get(id(x), -1) for x in consts)
    if -1 in places:  # an array that was computed when the rule was made
        return _Run(compiled, traced.out_tree, (), tuple(consts), vectors)
    return _Run(compiled, traced.out_tree, places, (), vectors)


@ft.lru_cache(maxsize=KEPT)
def _compiled(program: Program, name: str) -> Callable:
    def run(inputs, vectors):
        numbers = {dtype: list(xs) for dtype, xs in vectors.items()}
        return program.run(inputs, numbers)

    run.__name__ = run.__qualname__ = name  # in profiles
    return jax.jit(run)


@ft.cache
def _joins() -> bool:
    """Whether XLA makes x * (a * b) of x * a * b, which has other bits."""
    a, b, x = np.float32(0.3), np.float32(0.7), np.linspace(1, 2, 64, dtype=np.float32)
    return jax.jit(lambda x: x * a * b)(x).tobytes() == (x * (a * b)).tobytes()
