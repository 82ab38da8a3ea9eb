"""Measure one transformation on one tree, all libraries in turn in one process."""

import importlib
import importlib.util
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from . import in_torch
from .cases import CASES, RATE
from .shapes import SHAPES, abstract, filled, size
from .stages import Built, build


TURN = 0.03  # minimum seconds of the steps of a turn
LONG = 6.0  # seconds of compilation after which it is not repeated
SMALL = 5_000_000  # largest number of parameters to also measure without `jit`
MORE = 5  # factor of turns for fast steps, which are more easily disturbed
TORCH = 70_000_000  # largest number of parameters for which PyTorch fits, too, on a CPU


class Plan(NamedTuple):
    """What to measure.

    divisor: divisor of the widths of the trees.
    rounds: number of turns of each library.
    libraries: the installed libraries.
    """

    divisor: int
    rounds: int
    libraries: tuple[str, ...]


def installed() -> tuple[str, ...]:
    """The installed libraries to compare, Stepax first."""
    found = importlib.util.find_spec
    return ("stepax", *(name for name in ("optax", "torch") if found(name)))


def on_gpu() -> bool:
    """Whether there is an accelerator of any kind."""
    return jax.default_backend() != "cpu"


class Measured(NamedTuple):
    """The costs of one library.

    seconds: seconds of each round, by quantity: a step, the stages of compilation, an
        update without `jit`, and `init`.
    counts: the counts of `Built`.
    """

    seconds: dict[str, list[float]]
    counts: dict[str, float]


def measure(shape: str, case: str, plan: Plan) -> Iterator[tuple[str, Any]]:
    """Yield what is measured next, and finally (True, the costs of each library)."""
    tree, dtype = SHAPES[shape].make(plan.divisor), CASES[case].dtype
    jaxes = {name: importlib.import_module(name) for name in plan.libraries}
    jaxes.pop("torch", None)
    found = {name: Measured({}, {}) for name in jaxes}
    built = {}
    shapes = abstract(tree, dtype)
    for name in _compile(case, jaxes, shapes, plan.rounds, found, built):
        yield "compile", name
    yield "fill", shape
    params, gradients = filled(tree, 0, dtype=dtype), filled(tree, 1, 1e-2, dtype)
    if size(tree)[1] <= SMALL:
        for name in _without_jit(case, jaxes, params, gradients, plan.rounds, found):
            yield "un-jitted", name
    runners = _runners(case, jaxes, built, params, gradients)
    has_torch = "torch" in plan.libraries and case in in_torch.MADE
    if has_torch and (on_gpu() or size(tree)[1] <= TORCH):
        leaves = [jax.tree.leaves(x) for x in (params, gradients)]
        for name, step in in_torch.steps(case, *leaves)[1].items():
            runners[name] = _repeated(step)
            found[name] = Measured({}, {})
    for name in _steps(runners, CASES[case].calls, plan.rounds, found):
        yield "step", name
    yield "done", found


def _shuffled(names, turn):
    """A different order in each turn, so that no library always follows another."""
    return random.Random(turn).sample(list(names), len(names))


def _note(found, name, key, seconds):
    found[name].seconds.setdefault(key, []).append(seconds)


def _compile(case, libraries, params, rounds, found, built):
    """Build a program for each library, from a new optimizer in each round."""
    spent = 0.0
    for turn in range(rounds):
        if spent > LONG:
            break
        for name in _shuffled(libraries, turn):
            yield name
            lib = libraries[name]
            tx = CASES[case].make(lib, RATE * (1 + turn / 1000))
            built[name] = build(tx, lib, params, CASES[case].arrange)
            for key, seconds in built[name].seconds.items():
                _note(found, name, key, seconds)
            spent += sum(built[name].seconds.values())
            found[name].counts.update(built[name].counts)


def _without_jit(case, libraries, params, gradients, rounds, found):
    """Measure `init` and `update` without `jit`."""
    trees = jax.tree.map(jnp.asarray, (params, gradients))
    made = {k: CASES[case].make(lib, RATE) for k, lib in libraries.items()}
    held = {
        k: [CASES[case].arrange(lib, x) for x in trees] for k, lib in libraries.items()
    }
    states = {name: tx.init(held[name][0]) for name, tx in made.items()}
    for turn in range(-1, min(rounds, 5)):  # the first turn compiles
        for name in _shuffled(made, turn):
            yield name
            tx, (params, gradients) = made[name], held[name]
            state, init = timed(lambda tx=tx, p=params: tx.init(p))
            (_, states[name]), update = timed(
                lambda tx=tx, g=gradients, s=states[name], p=params: tx.update(g, s, p)
            )
            del state
            if turn >= 0:
                _note(found, name, "init", init)
                _note(found, name, "un-jitted", update)


def timed(f: Callable[[], Any]) -> tuple[Any, float]:
    """The result of `f`, and the seconds until it is ready."""
    begin = time.perf_counter()
    found = jax.block_until_ready(f())
    return found, time.perf_counter() - begin


def _runners(case, libraries, built, params, gradients):
    """For each library, a function that takes a given number of steps.

    Libraries whose states consist of the same arrays share them in turn.
    """
    gradients = [jnp.asarray(g) for g in jax.tree.leaves(gradients)]
    carries: dict[Any, list] = {}
    runners = {}
    for name, program in built.items():
        if program.kinds not in carries:
            tx = CASES[case].make(libraries[name], RATE)
            own = CASES[case].arrange(libraries[name], params)
            own = jax.tree.map(jnp.copy, own)
            # Copied, since a shared buffer cannot be donated twice.
            state = jax.tree.map(jnp.copy, tx.init(own))
            carries[program.kinds] = jax.tree.leaves((own, state))
        runners[name] = _runner(program, carries, gradients)
    return runners


def _runner(program: Built, carries, gradients):
    def run(n):
        carry = carries.pop(program.kinds)
        for _ in range(n):
            carry = program.run(carry, gradients)
        carries[program.kinds] = jax.block_until_ready(carry)

    return run


def _repeated(step):
    def run(n):
        for _ in range(n):
            step()
        in_torch.wait()

    return run


def _steps(runners, calls, rounds, found):
    many, quick = {}, set()
    for name, run in runners.items():
        yield name
        for _ in range(2):  # the first steps may allocate, and load kernels
            run(calls)
        seconds = timed(lambda run=run: run(calls))[1]
        many[name] = calls * max(1, min(100, math.ceil(TURN / seconds)))
        if seconds < 3 * TURN:
            quick.add(name)
    for turn in range(MORE * rounds):
        for name in _shuffled(runners if turn < rounds else sorted(quick), turn):
            yield name
            runners[name](calls)  # threads of the previous library may still spin
            seconds = timed(lambda name=name: runners[name](many[name]))[1]
            _note(found, name, "step", seconds / many[name])


def row(shape: str, case: str, library: str, measured: Measured) -> dict:
    """The row of a measurement: medians of the seconds, and the counts."""
    seconds = {k: statistics.median(v) for k, v in measured.seconds.items()}
    return {
        "shape": shape,
        "case": case,
        "library": library,
        **seconds,
        **measured.counts,
        "rounds": measured.seconds,
    }
