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
        self.ready: dict[int, Callable | None] = {}

    def __call__(self, *args: Any) -> Any:
        inputs = jax.tree.leaves(args[self.static :])
        if not _is_alone(inputs):
            return self.jitted(*args)
        # For the same types and settings JAX traces once, and returns the same object.
        traced = self.jitted.trace(*args)
        if (key := id(traced.jaxpr)) not in self.ready:
            self.ready[key] = _ready(traced.jaxpr, traced.fun_name)
        run = self.ready[key]
        if run is None:
            return self.jitted(*args)
        return jax.tree.unflatten(traced.out_tree, run(inputs))


def _is_alone(inputs: list) -> bool:
    """Whether a program runs right away, without a `jit` or a mesh around it."""
    settings: Any = jax.config  # its type does not name them
    if settings.jax_disable_jit or any(isinstance(x, Tracer) for x in inputs):
        return False
    return jax.sharding.get_abstract_mesh().empty


def _ready(closed: Any, name: str) -> Callable | None:
    """A compiled program with its numbers; `None` if it cannot be shared."""
    try:
        program, numbers = take_out(closed)
    except NotShareable:
        return None
    run = _compiled(program, name)
    vectors = {dtype: jnp.asarray(np.stack(xs)) for dtype, xs in numbers.items()}
    # `closed` stays alive, so that no other program gets its `id`.
    return lambda inputs: run([*closed.consts, *inputs], vectors)


@ft.lru_cache(maxsize=KEPT)
def _compiled(program: Program, name: str) -> Callable:
    def run(inputs, vectors):
        numbers = {dtype: list(xs) for dtype, xs in vectors.items()}
        return program.run(inputs, numbers)

    run.__name__ = run.__qualname__ = name  # in profiles
    return jax.jit(run)
