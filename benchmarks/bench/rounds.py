"""Rounds in which libraries take turns, until the ratios of their times are known."""

import itertools as it
import random
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax

from .ratios import Rounds, ratio


class Limits(NamedTuple):
    """When to stop.

    least, most: number of rounds.
    seconds: no further round is begun after these; the first `least` are, in any case.
    width: a ratio is known when its interval is narrower than this fraction of it.
    """

    least: int
    most: int
    seconds: float
    width: float


def take_turns(
    turn: Callable[[str, int], None],
    quantities: tuple[str, ...],
    rounds: dict[str, Rounds],
    pairs: Iterable[tuple[str, str]],
    limits: Limits,
) -> Iterator[str]:
    """Let all libraries take a turn in each round, in another order.

    Yields the name of the next one before its turn.

    turn: takes the turn of a library, in the round of this number, and records it.
    rounds: what is recorded, by library.
    pairs: the libraries whose ratios matter.  Once those of a library are known, it
        takes no more turns.
    """
    begin, names = time.perf_counter(), list(rounds)
    for number in it.count():
        is_late = time.perf_counter() - begin > limits.seconds
        if number >= limits.most or (number >= limits.least and (is_late or not names)):
            return
        for name in random.Random(number).sample(names, len(names)):
            yield name
            turn(name, number)
        if number + 1 >= limits.least:
            names = _unknown(quantities, rounds, pairs, limits.width)


def _unknown(quantities, rounds, pairs, width):
    """The libraries that are part of a ratio that is not known well enough."""
    open_pairs = [
        pair
        for pair in pairs
        for each in (ratio(rounds[pair[0]], rounds[pair[1]], q) for q in quantities)
        if each is not None and not each.is_known(width)
    ]
    return [name for name in rounds if any(name in pair for pair in open_pairs)]


def timed(f: Callable[[], Any]) -> tuple[Any, float]:
    """The result of `f`, and the seconds until it is ready."""
    begin = time.perf_counter()
    found = jax.block_until_ready(f())
    return found, time.perf_counter() - begin


def record(rounds: Rounds, key: str, seconds: float) -> None:
    rounds.setdefault(key, []).append(float(f"{seconds:.4g}"))
