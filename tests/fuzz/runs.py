"""A program run with either library, and what may be compared of two runs."""

import contextlib
import functools as ft
import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import jax
import numpy as np
import optax
import optax.contrib

import fuzz.world
import stepax
import stepax.contrib
from fuzz.in_numpy import Typed, in_numpy


@dataclass(frozen=True)
class Program:
    """Parameters and a transformation, as text, and the size of each gradient.

    also: how the steps are run a second time: in one "scan", "eager", or
        with one of `CARRIES` between them.
    """

    params: str
    tx: str
    sizes: tuple[float, ...] = (1.0,) * 5
    also: str = ""

    def make(self, o: Any) -> Any:
        return o.with_extra_args_support(eval(self.tx, names(o)))

    def tree(self, o: Any = None) -> Any:
        params = eval(self.params, names(None))
        return params if o is None else fuzz.world.pair_for(o, self.tx, params)

    def calls(self) -> "list[Call]":
        return [(self, t, size) for t, size in enumerate(self.sizes)]

    def script(self) -> str:
        """The program for both libraries, to be copied."""
        return SCRIPT.format(**vars(self))


SCRIPT = """\
# PYTHONPATH=.:tests python
import functools as ft
import jax; jax.config.update("jax_enable_x64", True)
import optax, optax.contrib, stepax, stepax.contrib
from fuzz.world import *

nan, inf = np.nan, np.inf
params = {params}
make = lambda o: {tx}
for o in optax, stepax:
    tx = o.with_extra_args_support(make(o))
    p = pair_for(o, {tx!r}, params)
    state = tx.init(p)
    print(o.__name__, state)
    for t, size in enumerate({sizes}):
        g = gradients(fast(p), t, size)
        extra = keywords({tx!r}, g, fast(p))
        updates, state = tx.update(g, state, p, **extra)
        p = o.apply_updates(p, updates)
        print(t, updates, state)
"""


Call: TypeAlias = tuple[Program, int, float]  # which gradient, and its size
Carry: TypeAlias = Callable[[Any, Any, Any], Any]


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
    seen = fuzz.world.fast(p)
    g = fuzz.world.gradients(seen, t, size)
    updates, s = tx.update(g, s, p, **fuzz.world.keywords(program.tx, g, seen))
    return o.apply_updates(p, updates), updates, s


def migrated(tx: Any, p: Any, state: Any) -> Any:
    """The state, carried over to a new one of the same transformation."""
    return stepax.tree.migrate(state, tx.init(p)).state


# What may happen to a state between two steps, and changes nothing.
CARRIES: dict[str, Carry] = {
    "": lambda tx, p, state: state,
    "numpy": lambda tx, p, state: jax.device_get(state),
    "migrated": migrated,
}


def run(o: Any, program: Program) -> Run:
    """Each step traced, and run in NumPy."""
    return run_calls(o, program.calls())


def run_calls(o: Any, calls: list[Call]) -> Run:
    """Each by its own program's transformation, to which the state is migrated."""
    return attempt(ft.partial(traced_steps, o, calls))


def run_by_operations(
    o: Any, program: Program, compiled: bool = False, carry: str = ""
) -> Run:
    """Outside of a trace.

    compiled: whether the library may compile what it likes.
    carry: what happens to the state before each step.
    """
    with jax.disable_jit(not compiled):
        return attempt(ft.partial(steps, o, program, CARRIES[carry]))


def attempt(steps: Callable[[Run], None]) -> Run:
    found = Run()
    try:
        steps(found)
    except Exception as error:  # whatever it is, it is compared
        found.error = error
    return found


def traced_steps(o: Any, calls: list[Call], found: Run) -> None:
    p, state = Typed.of(calls[0][0].tree(o)), None
    # By identity: a state may also be migrated to an equal program.
    for _, group in itertools.groupby(calls, lambda call: id(call[0])):
        same = list(group)
        program, *_ = same[0]
        tx = program.make(o)
        found.at = "init"
        state = started(tx, p, state)
        found.states = [state.tree()]
        one = in_numpy(ft.partial(step, o, tx, program))
        for _, t, size in same:
            found.at = f"step {t}"
            found.params.append(p.tree())
            p, updates, state = one(Typed.of(t), Typed.of(size), p, state).parts()
            found.updates.append(updates.tree())
            found.states.append(state.tree())


def started(tx: Any, p: Typed, state: Typed | None) -> Typed:
    fresh = in_numpy(tx.init)(p)
    if state is None:
        return fresh
    return Typed.of(stepax.tree.migrate(state.tree(), fresh.tree()).state)


def steps(o: Any, program: Program, carry: Carry, found: Run) -> None:
    p, tx = program.tree(o), program.make(o)
    found.at = "init"
    state = tx.init(p)
    found.states.append(state)
    for t, size in enumerate(program.sizes):
        found.at = f"step {t}"
        found.params.append(p)
        p, updates, state = step(o, tx, program, t, size, p, carry(tx, p, state))
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


def run_ours_by_operations(
    program: Program, compiled: bool = False, carry: str = ""
) -> Run:
    with strictly():
        return run_by_operations(stepax, program, compiled, carry)


def run_optax(program: Program) -> Run:
    """By operations where Optax cannot be traced, as ours can."""
    with loosely():
        found = run(optax, program)
    needs_values = isinstance(found.error, jax.errors.ConcretizationTypeError)
    is_other = needs_values or "cond branch" in str(found.error)
    return run_optax_by_operations(program) if is_other else found


def run_optax_by_operations(program: Program) -> Run:
    with loosely():
        return run_by_operations(optax, program)


def numbers(tree: Any) -> list[np.ndarray]:
    return [np.asarray(x) for x in jax.tree.leaves(tree)]
