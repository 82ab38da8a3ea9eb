"""Compile the programs of many cases at once, before the first is measured.

On a GPU compiling takes longer than measuring, and it takes a core for each program.
Seconds of compiling are then not worth to be kept.
"""

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from benchmarks.bench.cases import CASES
from benchmarks.bench.measure import (
    IN_ONE,
    WAITING,
    Plan,
    Way,
    bytes_of_waiting,
    waits,
    ways,
)
from benchmarks.bench.shapes import SHAPES, abstract
from benchmarks.bench.stages import Built


Pair = tuple[str, str]


def compiled(
    pairs: Iterable[Pair], plan: Plan, threads: int
) -> dict[Pair, dict[str, Built] | Exception]:
    """By tree and case: the program of each library, or the error of compiling them."""
    with ThreadPoolExecutor(threads) as pool:
        futures = {pair: _submitted(pool, *pair, plan) for pair in pairs}
        return {pair: _results(each) for pair, each in futures.items()}


def _submitted(pool, shape, name, plan) -> dict[str, Future]:
    case = CASES[name]
    params = abstract(SHAPES[shape].make(plan.divisor), case.dtype)
    each = ways(case, plan.libraries).items()
    return {
        library: pool.submit(_program, library, way, params) for library, way in each
    }


def _program(library: str, way: Way, params: Any) -> Built:
    built = way.build(way.make(), params)
    if library != IN_ONE or not waits(way.case):
        return built
    return built._replace(
        counts=built.counts | {WAITING: bytes_of_waiting(way, params)}
    )


def _results(futures: dict[str, Future]) -> dict[str, Built] | Exception:
    try:
        return {library: future.result() for library, future in futures.items()}
    except Exception as error:  # of any kind; the other cases continue
        return error
