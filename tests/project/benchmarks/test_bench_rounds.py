"""The rounds of the benchmark: who takes a turn, when they end, and their ratios."""

import math

import pytest

from benchmarks.bench import ratios, rounds


def test_traces_and_lowerings_are_added_up_in_each_round():
    ours = {"trace": [1.0, 2.0], "lower": [1.0, 2.0]}
    theirs = {"trace": [1.0, 7.0], "lower": [3.0, 1.0]}
    assert ratios.ratio(ours, theirs, "trace + lower") == (0.5, 0.0, math.inf)


@pytest.mark.parametrize("n", [1, 5, 6, 8, 9, 25, 100])
def test_an_interval_covers_the_median_of_any_distribution(n):
    """By the binomial distribution: `scipy` is the reference."""
    stats = pytest.importorskip("scipy.stats", reason="it is the reference")
    cut = ratios.outside(n)
    below = lambda k: 2 * stats.binom.cdf(k, n, 0.5)
    if cut is None:
        assert below(0) > 0.05
    else:
        assert below(cut) <= 0.05 < below(cut + 1)


def taken(times, limits):
    """The turns that libraries take with these seconds in each round."""
    found = {name: {} for name in times}
    turn = lambda name, i: rounds.record(found[name], "step", times[name](i))
    pairs = [("stepax", x) for x in times if x != "stepax"]
    list(rounds.take_turns(turn, ("step",), found, pairs, limits))
    return {name: len(x["step"]) for name, x in found.items()}


def test_libraries_take_turns_until_their_ratios_are_known():
    constant, wild = lambda i: 2.0, lambda i: 1.0 + i % 2
    limits = rounds.Limits(least=3, most=20, seconds=60.0, width=0.05)
    # Six rounds are the fewest of which an interval is known.
    assert taken({"stepax": constant, "optax": constant}, limits) == {
        "stepax": 6,
        "optax": 6,
    }
    times = {"stepax": constant, "optax": constant, "torch": wild}
    assert taken(times, limits) == {"stepax": 20, "optax": 6, "torch": 20}
    late = limits._replace(seconds=0.0)
    assert set(taken(times, late).values()) == {3}
    assert taken({"stepax": wild}, limits) == {"stepax": 3}


def test_every_round_has_another_order():
    orders = {}
    turn = lambda name, i: orders.setdefault(i, []).append(name)
    names = dict.fromkeys("abc", {})
    limits = rounds.Limits(30, 30, 0.0, 0.05)
    list(rounds.take_turns(turn, (), names, [], limits))
    assert len(orders) == 30 and len({tuple(x) for x in orders.values()}) == 6
