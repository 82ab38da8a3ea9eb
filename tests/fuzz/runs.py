"""A program run with either library, and what may be compared of two runs."""

import contextlib
import functools as ft
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import optax
import optax.contrib

import fuzz.world
import stepax
import stepax.contrib


@dataclass(frozen=True)
class Program:
    """Parameters and a transformation, as text, and the size of each gradient.

    is_compiled: whether the steps are also run in one program.
    """

    params: str
    tx: str
    sizes: tuple[float, ...] = (1.0,) * 5
    is_compiled: bool = False

    def make(self, o: Any) -> Any:
        return o.with_extra_args_support(eval(self.tx, names(o)))

    def tree(self) -> Any:
        return eval(self.params, names(None))

    def script(self) -> str:
        """The program for both libraries, to be copied."""
        return SCRIPT.format(**vars(self))


SCRIPT = """\
# PYTHONPATH=.:tests python
import functools as ft
import jax; jax.config.update("jax_enable_x64", True)
import optax, optax.contrib, stepax, stepax.contrib
from fuzz.world import *

params = {params}
make = lambda o: {tx}
for o in optax, stepax:
    tx = o.with_extra_args_support(make(o))
    p, state = params, tx.init(params)
    print(o.__name__, state)
    for t, size in enumerate({sizes}):
        g = gradients(p, t, size)
        updates, state = tx.update(g, state, p, **keywords({tx!r}, g, p))
        p = o.apply_updates(p, updates)
        print(t, updates, state)
"""


def names(o: Any) -> dict[str, Any]:
    return {**vars(fuzz.world), "o": o, "ft": ft}


@dataclass
class Run:
    """The updates of each step, the parameters before it, and all states.

    error: what failed, and `at` where.
    """

    updates: list = field(default_factory=list)
    params: list = field(default_factory=list)
    states: list = field(default_factory=list)
    error: Exception | None = None
    at: str = "factory"


def step(o: Any, tx: Any, program: Program, t: Any, size: Any, p: Any, s: Any) -> tuple:
    """The next parameters, the updates and the next state."""
    g = fuzz.world.gradients(p, t, size)
    updates, s = tx.update(g, s, p, **fuzz.world.keywords(program.tx, g, p))
    return o.apply_updates(p, updates), updates, s


def run(o: Any, program: Program) -> Run:
    """Operation by operation: few operations are compiled, each for all programs."""
    found = Run()
    with jax.disable_jit():
        try:
            steps(o, program, found)
        except Exception as error:  # whatever it is, it is compared
            found.error = error
    return found


def steps(o: Any, program: Program, found: Run) -> None:
    p, tx = program.tree(), program.make(o)
    found.at = "init"
    state = tx.init(p)
    found.states.append(state)
    for t, size in enumerate(program.sizes):
        found.at = f"step {t}"
        found.params.append(p)
        p, updates, state = step(o, tx, program, t, size, p, state)
        found.updates.append(updates)
        found.states.append(state)


@contextlib.contextmanager
def strictly() -> Iterator[None]:
    """How our tests run; but what a program warns of is its own affair."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
            yield


@contextlib.contextmanager
def loosely() -> Iterator[None]:
    """As Optax needs it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            yield


def run_ours(program: Program) -> Run:
    with strictly():
        return run(stepax, program)


def run_optax(program: Program) -> Run:
    with loosely():
        return run(optax, program)


def numbers(tree: Any) -> list[np.ndarray]:
    return [np.asarray(x) for x in jax.tree.leaves(tree)]
