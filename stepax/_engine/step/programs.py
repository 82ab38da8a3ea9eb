"""Programs outside of `jit`, compiled once for all values of their hyperparameters.

A rule computes with Python's numbers: it branches on them, and takes `1 - b1` in double
precision before anything is rounded.  So each value is traced, and in what is traced it
is a literal.  Inside of `jit` that is all.  Outside, where each leaf is a program of
its own, literals would make a program for each value: here they are taken out of what
was traced and given to it as an argument, and programs that are equal but for them
share what was compiled.  Nothing that is shared holds a function or an array.
"""

import functools as ft
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .literals import NotShareable, Program, take_out


# How many compiled programs are kept for optimizers that are still to be made; every
# optimizer keeps its own besides.
KEPT = 512


class Shared:
    """A function that is jitted inside of `jit`, and shares its programs outside.

    static: how many of the first arguments are constants.
    """

    def __init__(self, f: Callable, static: int = 0):
        self.static = static
        self.jitted = jax.jit(f, static_argnums=tuple(range(static)))
        self.ready: dict[tuple, Callable | None] = {}

    def __call__(self, *args: Any) -> Any:
        inputs, treedef = jax.tree.flatten(args[self.static :])
        if not _is_alone(inputs):
            if _is_jit_off():  # otherwise `jit` makes arrays of Python's numbers
                arrays = treedef.unflatten(map(jnp.asarray, inputs))
                args = (*args[: self.static], *arrays)
            return self.jitted(*args)
        # To ask JAX, which knows what it traced, takes longer than to run the program.
        types = tuple(map(_type, inputs))
        key = args[: self.static], treedef, types, _settings()
        if key not in self.ready:
            traced = self.jitted.trace(*args)
            # Constants may be met in a trace, of which nothing may be kept.
            with jax.ensure_compile_time_eval():
                self.ready[key] = _ready(traced)
        run = self.ready[key]
        return self.jitted(*args) if run is None else run(inputs)


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


def _ready(traced: Any) -> Callable | None:
    """A compiled program with its numbers; `None` if it cannot be shared."""
    consts, out_tree = traced.jaxpr.consts, traced.out_tree
    if any(isinstance(x, Tracer) for x in consts):
        return None
    try:
        program, numbers = take_out(traced.jaxpr, _joins())
    except NotShareable:
        return None
    run = _compiled(program, traced.fun_name)
    vectors = {dtype: jnp.asarray(np.stack(xs)) for dtype, xs in numbers.items()}
    return lambda inputs: out_tree.unflatten(run([*consts, *inputs], vectors))


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
