"""The 27 problems of nonlinear regression of NIST's Statistical Reference Datasets.

National Institute of Standards and Technology, https://www.itl.nist.gov/div898/strd:
observations, two starts, and parameters certified to 11 digits, in `strd.json`.  A
model maps the predictor and the parameters to the response, for Nelson its logarithm.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np


def misra1a(x, a, b):
    return a * (1 - jnp.exp(-b * x))


def misra1b(x, a, b):
    return a * (1 - (1 + b * x / 2) ** -2)


def misra1c(x, a, b):
    return a * (1 - (1 + 2 * b * x) ** -0.5)


def misra1d(x, a, b):
    return a * b * x / (1 + b * x)


def chwirut(x, a, b, c):
    return jnp.exp(-a * x) / (b + c * x)


def lanczos(x, a, b, c, d, e, f):
    return a * jnp.exp(-b * x) + c * jnp.exp(-d * x) + e * jnp.exp(-f * x)


def gauss(x, a, b, c, d, e, f, g, h):
    first = c * jnp.exp(-((x - d) ** 2) / e**2)
    return a * jnp.exp(-b * x) + first + f * jnp.exp(-((x - g) ** 2) / h**2)


def dan_wood(x, a, b):
    return a * x**b


def kirby2(x, a, b, c, d, e):
    return (a + b * x + c * x**2) / (1 + d * x + e * x**2)


def cubic(x, a, b, c, d, e, f, g):
    return (a + b * x + c * x**2 + d * x**3) / (1 + e * x + f * x**2 + g * x**3)


def nelson(x, a, b, c):
    return a - b * x[0] * jnp.exp(-c * x[1])


def mgh17(x, a, b, c, d, e):
    return a + b * jnp.exp(-x * d) + c * jnp.exp(-x * e)


def roszman1(x, a, b, c, d):
    return a - b * x - jnp.arctan(c / (x - d)) / np.pi


def enso(x, a, b, c, d, e, f, g, h, i):
    wave = lambda period, u, v: (
        u * jnp.cos(2 * np.pi * x / period) + v * jnp.sin(2 * np.pi * x / period)
    )
    return a + wave(12, b, c) + wave(d, e, f) + wave(g, h, i)


def mgh09(x, a, b, c, d):
    return a * (x**2 + x * b) / (x**2 + x * c + d)


def mgh10(x, a, b, c):
    return a * jnp.exp(b / (x + c))


def rat42(x, a, b, c):
    return a / (1 + jnp.exp(b - c * x))


def rat43(x, a, b, c, d):
    return a / (1 + jnp.exp(b - c * x)) ** (1 / d)


def eckerle4(x, a, b, c):
    return a / b * jnp.exp(-0.5 * ((x - c) / b) ** 2)


def bennett5(x, a, b, c):
    return a * (b + x) ** (-1 / c)


MODELS: dict[str, Callable] = {
    "Misra1a": misra1a,
    "Chwirut2": chwirut,
    "Chwirut1": chwirut,
    "Lanczos3": lanczos,
    "Gauss1": gauss,
    "Gauss2": gauss,
    "DanWood": dan_wood,
    "Misra1b": misra1b,
    "Kirby2": kirby2,
    "Hahn1": cubic,
    "Nelson": nelson,
    "MGH17": mgh17,
    "Lanczos1": lanczos,
    "Lanczos2": lanczos,
    "Gauss3": gauss,
    "Misra1c": misra1c,
    "Misra1d": misra1d,
    "Roszman1": roszman1,
    "ENSO": enso,
    "MGH09": mgh09,
    "Thurber": cubic,
    "BoxBOD": misra1a,
    "Rat42": rat42,
    "MGH10": mgh10,
    "Eckerle4": eckerle4,
    "Rat43": rat43,
    "Bennett5": bennett5,
}


class Fit(NamedTuple):
    """A regression: residuals of a vector, two starts, and what is certified."""

    name: str
    residuals: Callable
    starts: tuple[np.ndarray, np.ndarray]
    certified: np.ndarray
    deviations: np.ndarray
    squares: float


def collect() -> list[Fit]:
    data = json.loads(Path(__file__).with_suffix(".json").read_text())
    return [_fit(name, model, data[name]) for name, model in MODELS.items()]


def _fit(name: str, model: Callable, row: dict) -> Fit:
    x, y = (np.array(row[key], float) for key in ("x", "y"))
    x = x if name == "Nelson" else x[0]
    y = np.log(y) if name == "Nelson" else y

    def residuals(p):
        return model(jnp.asarray(x, p.dtype), *p) - jnp.asarray(y, p.dtype)

    starts = np.array(row["start_1"], float), np.array(row["start_2"], float)
    numbers = np.array(row["certified"]), np.array(row["deviation"]), row["squares"]
    return Fit(name, residuals, starts, *numbers)
