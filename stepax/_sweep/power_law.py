"""How the best learning rate grows with a size, from several sweeps.

Where the optima lie farther from the line than their errors allow, these are scaled as
by the Particle Data Group (Review of Particle Physics, section 5.2.2).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np

from .._engine.functions.calls import explain_misuse
from .._engine.inspect.tables import Printable, Table
from .fit import LEVEL, SweepFit, student


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
