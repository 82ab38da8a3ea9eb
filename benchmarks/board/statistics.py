"""What is said of losses and of draws: tests, corrections, expectations."""

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats


def paired(losses: np.ndarray, reference: np.ndarray) -> tuple[float, float, float]:
    """The ratio of geometric means, and the p of being lower and of being higher.

    A t-test of the differences of the logarithms, paired by seed, one-sided each way.
    """
    difference = np.log(losses) - np.log(reference)
    ratio = float(np.exp(difference.mean()))
    if np.ptp(difference) == 0:  # t is then 0 / 0, or infinite for a reason of no use
        return ratio, 1.0, 1.0
    way = lambda which: float(
        stats.ttest_1samp(difference, 0, alternative=which).pvalue
    )
    return ratio, way("less"), way("greater")


def holm(p: Sequence[float]) -> list[float]:
    """Holm's correction (1979): the i-th smallest of n times n - i, made monotone."""
    order = np.argsort(p)
    times = np.arange(len(p), 0, -1)
    adjusted = np.minimum(1, np.maximum.accumulate(np.asarray(p)[order] * times))
    found = np.empty(len(p))
    found[order] = adjusted
    return found.tolist()


def expected_best(losses: Sequence[float], k: int) -> float:
    """The mean, over all choices of k of these draws, of the lowest loss.

    sum_i x_i C(n - i, k - 1) / C(n, k),   x sorted, i from 1
    """
    n = len(losses)
    weights = [math.comb(n - i, k - 1) for i in range(1, n + 1)]
    return math.fsum(x * w for x, w in zip(sorted(losses), weights, strict=True)) / (
        math.comb(n, k)
    )


def share_until(curves: np.ndarray, target: float) -> tuple[float, int]:
    """The median share of the steps until a loss is reached, and how many reach it.

    curves: (seeds, marks).  The share is infinite if half of them do not.
    """
    is_there = curves <= target
    reached = is_there.any(1)
    first = (is_there.argmax(1) + 1) / curves.shape[1]
    return float(np.median(np.where(reached, first, np.inf))), int(reached.sum())


def span(rates: Sequence[float], losses: Sequence[float], factor: float) -> tuple:
    """The rates around the best one where the loss is at most `factor` times its own.

    Straight lines in logarithms connect the rates.  Returns the lowest and the highest
    one, and whether each is an end of the curve, so that the span may be longer.
    """
    x, y = np.log(rates), np.log(losses)
    best, bar = int(np.argmin(y)), float(np.min(y)) + math.log(factor)

    def side(step):
        i = best
        while 0 <= i + step < len(x):
            if y[i + step] > bar:
                part = (bar - y[i]) / (y[i + step] - y[i])
                return math.exp(x[i] + part * (x[i + step] - x[i])), False
            i += step
        return math.exp(x[i]), True

    (low, low_open), (high, high_open) = side(-1), side(1)
    return low, high, low_open, high_open


def profile(ratios: np.ndarray, factors: Sequence[float]) -> np.ndarray:
    """The share of tasks on which each optimizer is within factors of the best.

    ratios: (optimizers, tasks), losses over the best one's.
    """
    within = ratios[..., None] <= np.asarray(factors)
    return within.mean(1)
