"""Programs outside of `jit`, compiled once for all values of their hyperparameters.

A rule computes with Python scalars: it branches on them, and takes `1 - b1` in double
precision before anything is rounded.  So a rule is traced for each value, which becomes
a literal of the trace.  Inside of `jit` that is all.  Outside, where each leaf is a
program of its own, literals would lead to one compilation per value.  Here they are
lifted out of the trace and passed as arguments, and traces that differ in nothing else
share one compiled program.  Nothing that is shared holds a function or an array.
"""

import functools as ft
from collections.abc import Callable, Sequence
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
        inputs, treedef = jax.tree.flatten(args)
        if not _is_alone([*inputs, *self.arrays]):
            # Otherwise `jit` makes arrays of Python scalars.
            if _jit_is_off(jax.config):
                args = treedef.unflatten(map(jnp.asarray, inputs))
            return self.jitted(*args)
        # JAX has a cache of traces, but to ask it takes longer than to run the program.
        key = treedef, tuple(map(_type, inputs)), _settings(jax.config)
        for runs in (self.own, self.all):
            if key in runs:
                run = runs[key]
                return self.jitted(*args) if run is None else run(inputs, self.arrays)
        self._trace(key, args)
        return self(*args)

    def _trace(self, key: tuple, args: tuple) -> None:
        traced = self.jitted.trace(*args)
        # Otherwise constants could become tracers, which must not outlive their trace.
        with jax.ensure_compile_time_eval():
            run = _run_of(traced, len(jax.tree.leaves(args)), self.arrays)
        # What keeps an array of its own is not shared, or the array would live on.
        keeps_none = run is not None and not run.consts
        (self.all if keeps_none else self.own)[key] = run


# Bounded: a search over hyperparameters makes calls without end.
@ft.lru_cache(maxsize=64)
def _runs(kind: str, origins: tuple) -> dict:
    """The programs of rules that were made by equal calls."""
    return {}


@dataclass(frozen=True)
class _Run:
    """A compiled program, and what it takes besides its inputs.

    arrays: the indices of arrays among those of the factory calls, if all that the
        rules close over are among them.
    consts: otherwise all arrays that they close over.
    vectors: the lifted literals, by dtype.
    """

    program: Callable
    rebuild: Callable[[list], ArrayTree]
    arrays: tuple[int, ...]
    consts: tuple[jax.Array, ...]
    vectors: dict[str, jax.Array]

    def __call__(self, inputs: list, arrays: list) -> ArrayTree:
        given = [arrays[i] for i in self.arrays] or self.consts
        return self.rebuild(self.program([*given, *inputs], self.vectors))


def _type(x: jax.Array) -> object:
    # `typeof` looks up what an array has at hand.
    return x.aval if isinstance(x, jax.Array) else jax.typeof(x)


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


def _is_alone(inputs: list) -> bool:
    """Whether a program runs right away, without a `jit` or a mesh around it."""
    if _jit_is_off(jax.config) or any(isinstance(x, Tracer) for x in inputs):
        return False
    return jax.sharding.get_abstract_mesh().empty


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
    if -1 in places:  # an array that was computed when the rule was made
        return _Run(compiled, rebuild, (), tuple(consts), vectors)
    return _Run(compiled, rebuild, places, (), vectors)


@ft.lru_cache(maxsize=KEPT)
def _compiled(program: Program, name: str) -> Callable:
    def run(inputs, vectors):
        return program.run(inputs, {dtype: list(xs) for dtype, xs in vectors.items()})

    # For profiles, in which it would be `run`.
    run.__name__ = run.__qualname__ = name
    return jax.jit(run)


@ft.cache
def _joins() -> bool:
    """Whether XLA computes x * a * b as x * (a * b), which rounds differently."""
    # Tried out, because it depends on the version of XLA and on the backend.
    a, b, x = np.float32(0.3), np.float32(0.7), np.linspace(1, 2, 64, dtype=np.float32)
    return jax.jit(lambda x: x * a * b)(x).tobytes() == (x * (a * b)).tobytes()
