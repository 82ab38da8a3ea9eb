"""The best learning rate of a sweep, with an interval, and how it grows with a size.

E. C. Fieller, 1954, Some Problems in Interval Estimation (J. R. Stat. Soc. B 16), for
the interval of a ratio of two estimates; G. E. P. Box and D. R. Cox, 1964, An Analysis
of Transformations (J. R. Stat. Soc. B 26), for the choice between losses and their
logarithms.  Where the optima of several sweeps lie farther from a line than their
errors allow, these are scaled as by the Particle Data Group (Review of Particle
Physics, section 5.2.2).
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import jax
import numpy as np

from .._engine.functions.calls import explain_misuse
from .._engine.inspect import Printable, Table
from .._schedules.picture import new_figure


LEVEL = 0.95
# A parabola is a model of the neighbourhood of the minimum: rates far from the best are
# left out while the seeds say that it does not fit, with this rate of false alarms.
_ALARM = 0.01
_FEWEST = 4  # rates that are left, where there were as many
# Losses themselves have to fit this much better than their logarithms: with a choice
# by the smaller residual alone, intervals for four rates contain the truth in 90 %.
_CLEARLY = 0.6


@dataclass(frozen=True, repr=False, eq=False)
class SweepFit(Printable):
    """A parabola through the losses of a sweep, over the log of the learning rate.

    name: the name of the learning rate in the grid.
    optimum: the learning rate of the lowest loss; NaN if the parabola has no minimum.
    lower, upper: its 95 % interval; 0 and infinity where the losses set no limit.
    note: what is wrong with the grid for this purpose; "" if nothing is.
    deviation: the standard error of the logarithm of the optimum.
    rates: those that were used, (rates,).
    values: the losses that were fitted, or their logarithms, (rates, seeds).
    is_log: whether they are logarithms.
    coefficients: of a + b x + c x^2 in x = log(rate).
    """

    name: str
    optimum: float
    lower: float
    upper: float
    note: str
    deviation: float
    rates: np.ndarray
    values: np.ndarray
    is_log: bool
    coefficients: tuple[float, float, float]

    def tables(self) -> list[Table]:
        header = ["", "optimum", "lower", "upper", "rates used", ""]
        numbers = [f"{x:.3g}" for x in (self.optimum, self.lower, self.upper)]
        return [(header, [[self.name, *numbers, str(len(self.rates)), self.note]])]

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Plot the losses, the parabola, the optimum and its interval.

        It needs matplotlib.

        path: the file to write; its suffix is the format.
        """
        shown = np.exp if self.is_log else np.asarray
        axes = (figure := new_figure("plot")).subplots()
        x = np.geomspace(self.rates[0], self.rates[-1], 200)
        curve = np.polynomial.Polynomial(self.coefficients)(np.log(x))
        axes.plot(self.rates, shown(self.values), "C0.", alpha=0.6)
        axes.plot(x, shown(curve), "C0")
        ends = np.clip([self.lower, self.upper], x[0], x[-1])
        axes.axvspan(*ends, color="C1", alpha=0.2, label="95 % interval")
        if x[0] <= self.optimum <= x[-1]:
            axes.axvline(self.optimum, color="C1")
        axes.set(xlabel=self.name, ylabel="final loss", xscale="log")
        axes.set(title=self.note, yscale="log" if self.is_log else "linear")
        axes.grid(alpha=0.3)
        axes.legend()
        figure.savefig(path)


class _Parabola(NamedTuple):
    """b x + c x^2 through values without the means of their seeds.

    squares: the sum of squared residuals, with `freedom` degrees of freedom.
    covariance: of b and c, for residuals of variance 1.
    """

    b: float
    c: float
    squares: float
    freedom: int
    covariance: np.ndarray


def fitted(name: str, rates: np.ndarray, losses: np.ndarray) -> SweepFit:
    """The fit to losses (rates, seeds) of increasing positive rates.

    Raises a `ValueError` if there are too few.
    """
    few = np.unique(rates).size
    if few < 3 or losses.size - losses.shape[1] < 3:
        raise ValueError(
            f"`fit` needs three values of {name!r} at which no run diverged, or four "
            f"with a single seed, but has {few}: add values to the grid"
        )
    is_log = bool((losses > 0).all()) and not _plain_is_better(np.log(rates), losses)
    values = np.log(losses) if is_log else losses
    while len(rates) > _FEWEST and _misfit(np.log(rates), values) < _ALARM:
        # Without the rate that is farthest from the best.
        best = np.log(rates[np.argmin(values.mean(1))])
        farthest = np.argmax(np.abs(np.log(rates) - best))
        rates, values = (np.delete(x, farthest, 0) for x in (rates, values))
    return _solved(name, rates, values, is_log)


def _solved(name, rates, values, is_log):
    x = np.log(rates)
    center = x.mean()
    found = _parabola(x - center, values)
    b, c = found.b, found.c
    optimum, deviation = math.nan, math.inf
    if c > 0:
        optimum = -b / (2 * c)
        gradient = np.array([1.0, 2 * optimum]) / (2 * c)
        v = found.covariance * found.squares / found.freedom
        deviation = math.sqrt(gradient @ v @ gradient)
    note, lower, upper = _noted(optimum, *_fieller(found), x - center)
    a = (values.mean(1) - b * (x - center) - c * (x - center) ** 2).mean()
    whole = (a - b * center + c * center**2, b - 2 * c * center, c)
    best, low, high = (float(np.exp(y + center)) for y in (optimum, lower, upper))
    data = (rates, values, is_log, whole)
    return SweepFit(name, best, low, high, note, deviation, *data)


def _parabola(x, values):
    """Seeds differ by a constant: each has its own batches and first parameters."""
    design = np.stack([x, x * x], 1)
    design = design - design.mean(0)
    y = values - values.mean(0)
    inverse = np.linalg.inv(design.T @ design)
    b, c = inverse @ design.T @ y.mean(1)
    residuals = y - (design @ [b, c])[:, None]
    freedom = y.size - y.shape[1] - 2
    squares = float(np.sum(residuals**2))
    return _Parabola(float(b), float(c), squares, freedom, inverse / y.shape[1])


def _fieller(found):
    """All t at which the slope b + 2 c t may be 0, if they are an interval."""
    b, c, squares, freedom, covariance = found
    v = covariance * squares / freedom * student(freedom) ** 2
    # The ends are where (b + 2 c t)^2 is its variance times the quantile squared.
    p, q, r = 4 * (c * c - v[1, 1]), 4 * (b * c - v[0, 1]), b * b - v[0, 0]
    if c <= 0 or p <= 0:
        return -math.inf, math.inf
    root = math.sqrt(max(q * q - 4 * p * r, 0.0))
    return (-q - root) / (2 * p), (-q + root) / (2 * p)


def _noted(optimum, lower, upper, x):
    """A parabola says nothing of rates beyond those that it was fitted to."""
    if math.isnan(optimum):
        return "no minimum: add values on both sides", lower, upper
    if optimum > x[-1]:
        return "above the grid: add larger values", lower, math.inf
    if optimum < x[0]:
        return "below the grid: add smaller values", -math.inf, upper
    if math.isinf(upper):
        return "too flat for its noise: add seeds or a wider range", lower, upper
    return "", lower, upper


def _plain_is_better(x, losses):
    """Whether the losses are a parabola with equal noise, rather than their logarithms.

    In units of their geometric mean, the sums of squares are likelihoods of the same
    numbers.  Three rates cannot tell, as any parabola goes through them.
    """
    if len(x) < 4:
        return False
    scaled = losses / np.exp(np.log(losses).mean())
    plain, log = (_parabola(x - x.mean(), y).squares for y in (scaled, np.log(losses)))
    return plain < _CLEARLY * log


def _misfit(x, values):
    """The probability that the seeds alone explain the distance to the parabola.

    It is 1 for a single seed, which says nothing about noise.
    """
    seeds = values.shape[1]
    squares = _parabola(x - x.mean(), values).squares
    noise = values - values.mean(0) - values.mean(1, keepdims=True) + values.mean()
    pure, n, m = float(np.sum(noise**2)), len(x) - 3, (len(x) - 1) * (seeds - 1)
    if not pure or not m:
        return 1.0
    ratio = max(squares - pure, 0.0) / n / (pure / m)
    return _incomplete_beta(m / 2, n / 2, m / (m + n * ratio))


@lru_cache
def student(freedom: float) -> float:
    """What 95 % of the absolute values of Student's distribution do not exceed."""
    low, high = 0.0, 1e3
    for _ in range(50):
        t = (low + high) / 2
        tails = _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))
        low, high = (t, high) if tails > 1 - LEVEL else (low, t)
    return high


def _incomplete_beta(a: float, b: float, x: float) -> float:
    return float(jax.scipy.special.betainc(*map(np.float32, (a, b, x))))


# --- several sweeps ----------------------------------------------------------------


class Estimate(NamedTuple):
    """A value with its 95 % interval."""

    value: float
    lower: float
    upper: float


@dataclass(frozen=True, repr=False)
class PowerLaw(Printable):
    """optimum = factor * size^exponent.

    exponent: an `Estimate`: `value`, `lower`, `upper`.
    """

    exponent: Estimate
    _center: tuple[float, float]  # logarithms of a size and of its optimum
    _halves: tuple[float, float]  # of the intervals of that and of the exponent

    def at(self, size: float) -> Estimate:
        """The best learning rate at another size, with its 95 % interval.

        Outside of the sizes of the fits it assumes that the law goes on.
        """
        x = math.log(size) - self._center[0]
        value = self._center[1] + self.exponent.value * x
        half = math.hypot(self._halves[0], self._halves[1] * x)
        return Estimate(*(math.exp(value + y) for y in (0.0, -half, half)))

    def tables(self) -> list[Table]:
        header = ["", "exponent", "lower", "upper"]
        return [(header, [["size", *(f"{x:.3g}" for x in self.exponent)]])]


@explain_misuse
def power_law(fits: Mapping[float, SweepFit]) -> PowerLaw:
    """How the best learning rate depends on a size: width, tokens, or batch.

        log(optimum) = a + exponent log(size)

    Each optimum counts by its standard error.

    fits: from each size, a positive number, to the fit of a sweep at that size; two or
        more.

    Raises a `ValueError` for fewer sizes, a size that is not positive, and a fit whose
    interval has no end.
    """
    _check(fits)
    x, y = np.log([*fits]), np.log([f.optimum for f in fits.values()])
    # A fit of data without noise would count infinitely.
    errors = np.maximum([f.deviation for f in fits.values()], 1e-9)
    weights = errors**-2
    middle = [float(np.average(z, weights=weights)) for z in (x, y)]
    spread = float(weights @ (x - middle[0]) ** 2)
    slope = float(weights @ ((x - middle[0]) * (y - middle[1]))) / spread
    left = y - middle[1] - slope * (x - middle[0])
    quantile = _quantile(fits, float(weights @ left**2))
    halves = quantile / math.sqrt(weights.sum()), quantile / math.sqrt(spread)
    exponent = Estimate(slope, slope - halves[1], slope + halves[1])
    return PowerLaw(exponent, (middle[0], middle[1]), halves)


def _quantile(fits, excess):
    """The standard errors that an interval has on each side of a value."""
    runs = sum(f.values.size - f.values.shape[1] - 2 for f in fits.values())
    freedom = len(fits) - 2
    if not freedom:
        return student(runs)
    # The probability of a larger sum of squares of as many standard normals.
    halves = np.float32(freedom / 2), np.float32(excess / 2)
    if float(jax.scipy.special.gammaincc(*halves)) > 1 - LEVEL:
        return student(runs)
    return student(freedom) * math.sqrt(excess / freedom)


def _check(fits: Mapping[float, SweepFit]) -> None:
    if len(fits) < 2 or not all(size > 0 for size in fits):
        raise ValueError(
            f"`power_law` needs two or more positive sizes, but has {list(fits)}"
        )
    for size, found in fits.items():
        if not 0 < found.lower <= found.upper < math.inf:
            raise ValueError(
                f"the interval of the fit at size {size} has no end; "
                f"{found.note or 'add seeds'}"
            )
