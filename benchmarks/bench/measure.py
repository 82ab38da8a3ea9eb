"""Measure one transformation on one tree, all libraries in turn in one process.

Steps by two calls and steps in one, of the same library, count as two libraries.
"""

import functools as ft
import importlib
import importlib.util
import math
import os
import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from . import in_torch, products
from .cases import CASES, RATE, Case
from .ratios import QUANTITIES, Rounds, all_ratios
from .rounds import Limits, record, take_turns, timed as timed
from .shapes import SHAPES, Shape, abstract, filled, size
from .stages import Built, build, bytes_of_first_call, in_one, two_calls


TURN = 0.03  # minimum seconds of the steps of a turn
SMALL = 5_000_000  # largest number of parameters to also measure without `jit`
TORCH = 70_000_000  # largest number of parameters for which PyTorch fits, too, on a CPU
OURS, IN_ONE, PRODUCTS = "stepax", "stepax.step", "its products"
WAITING = "bytes of a waiting call"
WAYS = OURS, IN_ONE  # those whose ratios to the others are shown
TINY = {"w": (3, 2), "b": (2,)}  # a tree to run all of the code once


class Plan(NamedTuple):
    """What to measure.

    divisor: divisor of the widths of the trees.
    limits: when to stop.
    libraries: the installed libraries.
    programs: by tree and case, programs that are already compiled, by name, or the
        error that compiling them raised.
    """

    divisor: int
    limits: Limits
    libraries: tuple[str, ...]
    programs: Mapping[tuple[str, str], dict[str, Built] | Exception] = {}


def installed() -> tuple[str, ...]:
    """The installed libraries to compare, Stepax first."""
    found = importlib.util.find_spec
    return (OURS, *(name for name in ("optax", "torch") if found(name)))


def on_gpu() -> bool:
    """Whether there is an accelerator of any kind."""
    return jax.default_backend() != "cpu"


class Way(NamedTuple):
    """A library, and how it takes a step."""

    case: Case
    lib: Any
    take: Callable

    def make(self, rate: float = RATE) -> Any:
        return self.case.make(self.lib, rate)

    def build(self, tx: Any, params: Any) -> Built:
        return build(tx, self.lib, params, self.case.arrange, self.take)


class Measured(NamedTuple):
    """The costs of one library.

    rounds: seconds of each round, by quantity: a step, the stages of compilation, a
        step without `jit`, and `init`.
    counts: the counts of `Built`.
    """

    rounds: Rounds
    counts: dict[str, float]


def ways(case: Case, libraries: tuple[str, ...]) -> dict[str, Way]:
    """By name: the JAX libraries that have this case, and our step in one."""
    names = [
        x for x in libraries if x != "torch" and x in (case.libraries or libraries)
    ]
    jaxes = {name: importlib.import_module(name) for name in names}
    found = {name: Way(case, lib, two_calls) for name, lib in jaxes.items()}
    return {OURS: found.pop(OURS), IN_ONE: Way(case, jaxes[OURS], in_one), **found}


def measure(shape: str, case: str, plan: Plan) -> Iterator[tuple[str, Any]]:
    """Yield what is measured next, and finally ("done", the rows of all libraries)."""
    tree, about = SHAPES[shape].make(plan.divisor), CASES[case]
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    all_ways = ways(about, plan.libraries)
    if "torch" in plan.libraries:
        in_torch.release()  # the tensors of the case before
    found = {name: Measured({}, {}) for name in all_ways}
    built: dict[str, Built] = {}
    shapes = abstract(tree, about.dtype)
    is_compiled = (shape, case) in plan.programs
    if is_compiled:
        built = _known(plan.programs[shape, case])
        for name, program in built.items():
            found[name].counts.update(program.counts)
    else:
        for name in _compile(all_ways, shapes, plan, found, built):
            yield "compile", name
    yield "fill", shape
    params, gradients = numbers(SHAPES[shape], plan.divisor, about.dtype)
    if size(tree)[1] <= SMALL and not is_compiled:
        for name in _without_jit(all_ways, params, gradients, plan, found):
            yield "un-jitted", name
    runners = make_runners(all_ways, built, params, gradients)
    if about.has_floor and not on_gpu():  # where each product would wait for the host
        runners[PRODUCTS] = products.alone(built[IN_ONE].traced)
    has_torch = "torch" in plan.libraries and case in in_torch.MADE
    if has_torch and (on_gpu() or size(tree)[1] <= TORCH):
        leaves = [jax.tree.leaves(x) for x in (params, gradients)]
        for name, step in in_torch.steps(case, *leaves)[1].items():
            runners[name] = _repeated(step)
    timer = _one_by_one if about.is_stepwise else _steps
    for name in timer(runners, about.calls, plan, found):
        yield "step", name
    yield "done", _rows({"shape": shape, "case": case}, tree, load, found)


def _known(programs: dict[str, Built] | Exception) -> dict[str, Built]:
    if isinstance(programs, Exception):
        raise programs
    return programs


@ft.lru_cache(1)  # the cases of a tree share them
def numbers(shape: Shape, divisor: int, dtype: Any) -> tuple[dict, dict]:
    """Parameters and gradients, as NumPy arrays."""
    tree = shape.make(divisor)
    return filled(tree, 0, 1.0, dtype), filled(tree, 1, 1e-2, dtype)


def _turns(turn, quantities, plan, found, names, least=None):
    """The rounds of these libraries; our ratios to the others are what matters."""
    rounds = {name: found[name].rounds for name in names}
    pairs = [(x, y) for x in WAYS for y in names if x in names and y not in WAYS]
    limits = plan.limits if least is None else plan.limits._replace(least=least)
    return take_turns(turn, quantities, rounds, pairs, limits)


def _compile(all_ways, params, plan, found, built):
    """Build a program for each library, from a new optimizer in each round."""

    def turn(name, number):
        way = all_ways[name]
        built[name] = way.build(way.make(RATE * (1 + number / 1000)), params)
        for key, seconds in built[name].seconds.items():
            record(found[name].rounds, key, seconds)
        found[name].counts.update(built[name].counts)

    for name, way in all_ways.items():
        yield name
        # What JAX does only once in a process is not part of any round.
        way.build(way.make(RATE / 2), abstract(TINY, way.case.dtype))
    yield from _turns(turn, ("trace + lower", "compile"), plan, found, all_ways, 1)
    if waits(all_ways[IN_ONE].case):
        yield IN_ONE
        found[IN_ONE].counts[WAITING] = bytes_of_waiting(all_ways[IN_ONE], params)


def waits(case: Case) -> bool:
    """Whether some calls of a period do less than others, as counters tell."""
    return case.calls > 1 and not case.is_stepwise


def bytes_of_waiting(way: Way, params: Any) -> float:
    """Bytes per parameter of the first call of a period."""
    # Only of our step in one: in two calls XLA would remove zeros that they do add.
    how = way.lib, params, way.case.arrange, way.take
    return bytes_of_first_call(way.make(), *how)


def _without_jit(all_ways, params, gradients, plan, found):
    """Measure `init` and a step without `jit`."""
    trees = jax.tree.map(jnp.asarray, (params, gradients))
    made = {name: way.make() for name, way in all_ways.items()}
    held = {k: [w.case.arrange(w.lib, x) for x in trees] for k, w in all_ways.items()}
    states = {name: tx.init(held[name][0]) for name, tx in made.items()}

    def times(name):
        way, tx, (params, gradients) = all_ways[name], made[name], held[name]
        take = lambda: way.take(way.lib, tx, gradients, states[name], params)
        (_, states[name]), step = timed(take)
        if name == IN_ONE:
            return {"un-jitted": step}  # `init` is that of the two calls
        return {"un-jitted": step, "init": timed(lambda: tx.init(params))[1]}

    def turn(name, number):
        for key, seconds in times(name).items():
            record(found[name].rounds, key, seconds)

    for name in all_ways:  # compiles
        yield name
        times(name)
    yield from _turns(turn, ("init", "un-jitted"), plan, found, all_ways, 1)


def make_runners(all_ways, built, params, gradients):
    """For each library, a function that takes a given number of steps.

    Libraries whose states consist of the same arrays share them in turn.
    """
    gradients = [jnp.asarray(g) for g in jax.tree.leaves(gradients)]
    carries: dict[Any, list] = {}
    runners = {}
    for name, program in built.items():
        if program.kinds not in carries:
            way = all_ways[name]
            own = jax.tree.map(jnp.copy, way.case.arrange(way.lib, params))
            # Copied, since a shared buffer cannot be donated twice.
            state = jax.tree.map(jnp.copy, way.make().init(own))
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


def _steps(runners, calls, plan, found):
    many = {}

    def turn(name, number):
        runners[name](calls)  # threads of the previous library may still spin
        seconds = timed(lambda: runners[name](many[name]))[1]
        record(found[name].rounds, "step", seconds / many[name])

    for name, run in runners.items():
        yield name
        found.setdefault(name, Measured({}, {}))
        for _ in range(2):  # the first steps may allocate, and load kernels
            run(calls)
        seconds = timed(lambda run=run: run(calls))[1]
        many[name] = calls * max(1, min(100, math.ceil(TURN / seconds)))
    yield from _turns(turn, ("step",), plan, found, runners)


def _one_by_one(runners, calls, plan, found):
    """Each call of a period by itself."""

    def turn(name, number):
        passed = [timed(lambda: runners[name](1))[1] for _ in range(calls)]
        for i, seconds in enumerate(passed):
            record(found[name].rounds, f"call {i}", seconds)
        record(found[name].rounds, "step", statistics.fmean(passed))

    for name, run in runners.items():
        yield name
        run(calls)
    yield from _turns(turn, ("step",), plan, found, runners, 3)
    for name in runners:
        each = [
            statistics.median(found[name].rounds[f"call {i}"]) for i in range(calls)
        ]
        found[name].counts["longest to median call"] = max(each) / statistics.median(
            each
        )


def _rows(about, tree, load, found):
    """The rows of a case: medians of the seconds, the counts, and all rounds."""
    arrays, numbers = size(tree)
    common = {"arrays": arrays, "numbers": numbers, "load": load}
    others = {name: x.rounds for name, x in found.items() if name not in WAYS}
    rows = []
    for name, (rounds, counts) in found.items():
        row = {**about, "library": name, **common, **_medians(rounds), **counts}
        if "lines" in counts:
            row["lines per array"] = counts["lines"] / arrays
        rows.append(row | {"rounds": rounds})
        if name in WAYS:
            rows[-1]["ratios"] = all_ratios(rounds, others)
    return rows


def _medians(rounds):
    known = {key for keys in QUANTITIES.values() for key in keys}
    return {k: statistics.median(x) for k, x in rounds.items() if k in known}
