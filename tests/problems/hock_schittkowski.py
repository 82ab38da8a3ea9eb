"""Problems with constraints, by their numbers in the collection.

Hock and Schittkowski, 1981, Test Examples for Nonlinear Programming Codes, Lecture
Notes in Economics and Mathematical Systems 187 (DOI 10.1007/978-3-642-48320-2).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp


class Limited(NamedTuple):
    """A function of one vector, with functions that are 0 and that are not negative.

    minimum: its published minimum.
    """

    number: int
    fun: Callable
    start: tuple[float, ...]
    minimum: float
    zero: Callable | None = None
    positive: Callable | None = None
    bounds: tuple[Any, Any] | None = None


def _rows(f: Callable) -> Callable:
    """A function of the elements of a vector, as one vector."""
    return lambda x: jnp.stack([jnp.asarray(row, x.dtype) for row in f(*x)])


_ROOT = 2.0**0.5
PROBLEMS = [
    Limited(
        6,
        lambda x: (1 - x[0]) ** 2,
        (-1.2, 1.0),
        0.0,
        zero=_rows(lambda a, b: [10 * (b - a**2)]),
    ),
    Limited(
        7,
        lambda x: jnp.log(1 + x[0] ** 2) - x[1],
        (2.0, 2.0),
        -(3.0**0.5),
        zero=_rows(lambda a, b: [(1 + a**2) ** 2 + b**2 - 4]),
    ),
    Limited(
        10,
        lambda x: x[0] - x[1],
        (-10.0, 10.0),
        -1.0,
        positive=_rows(lambda a, b: [-3 * a**2 + 2 * a * b - b**2 + 1]),
    ),
    Limited(
        12,
        lambda x: x[0] ** 2 / 2 + x[1] ** 2 - x[0] * x[1] - 7 * x[0] - 7 * x[1],
        (0.0, 0.0),
        -30.0,
        positive=_rows(lambda a, b: [25 - 4 * a**2 - b**2]),
    ),
    Limited(
        14,
        lambda x: (x[0] - 2) ** 2 + (x[1] - 1) ** 2,
        (2.0, 2.0),
        9 - 2.875 * 7**0.5,
        zero=_rows(lambda a, b: [a - 2 * b + 1]),
        positive=_rows(lambda a, b: [1 - a**2 / 4 - b**2]),
    ),
    Limited(
        21,
        lambda x: 0.01 * x[0] ** 2 + x[1] ** 2 - 100,
        (-1.0, -1.0),
        -99.96,
        positive=_rows(lambda a, b: [10 * a - b - 10]),
        bounds=([2.0, -50.0], [50.0, 50.0]),
    ),
    Limited(
        26,
        lambda x: (x[0] - x[1]) ** 2 + (x[1] - x[2]) ** 4,
        (-2.6, 2.0, 2.0),
        0.0,
        zero=_rows(lambda a, b, c: [(1 + b**2) * a + c**4 - 3]),
    ),
    Limited(
        27,
        lambda x: 0.01 * (x[0] - 1) ** 2 + (x[1] - x[0] ** 2) ** 2,
        (2.0, 2.0, 2.0),
        0.04,
        zero=_rows(lambda a, b, c: [a + c**2 + 1]),
    ),
    Limited(
        28,
        lambda x: (x[0] + x[1]) ** 2 + (x[1] + x[2]) ** 2,
        (-4.0, 1.0, 1.0),
        0.0,
        zero=_rows(lambda a, b, c: [a + 2 * b + 3 * c - 1]),
    ),
    Limited(
        35,
        lambda x: (
            9 - 8 * x[0] - 6 * x[1] - 4 * x[2] + 2 * x[0] ** 2 + 2 * x[1] ** 2
            + x[2] ** 2 + 2 * x[0] * x[1] + 2 * x[0] * x[2]
        ),
        (0.5, 0.5, 0.5),
        1 / 9,
        positive=_rows(lambda a, b, c: [3 - a - b - 2 * c]),
        bounds=(0.0, None),
    ),
    Limited(
        39,
        lambda x: -x[0],
        (2.0, 2.0, 2.0, 2.0),
        -1.0,
        zero=_rows(lambda a, b, c, d: [b - a**3 - c**2, a**2 - b - d**2]),
    ),
    Limited(
        40,
        lambda x: -jnp.prod(x),
        (0.8, 0.8, 0.8, 0.8),
        -0.25,
        zero=_rows(lambda a, b, c, d: [a**3 + b**2 - 1, a**2 * d - c, d**2 - b]),
    ),
    Limited(
        43,
        lambda x: (
            x[0] ** 2 + x[1] ** 2 + 2 * x[2] ** 2 + x[3] ** 2
            - 5 * x[0] - 5 * x[1] - 21 * x[2] + 7 * x[3]
        ),
        (0.0, 0.0, 0.0, 0.0),
        -44.0,
        positive=_rows(
            lambda a, b, c, d: [
                8 - a**2 - b**2 - c**2 - d**2 - a + b - c + d,
                10 - a**2 - 2 * b**2 - c**2 - 2 * d**2 + a + d,
                5 - 2 * a**2 - b**2 - c**2 - 2 * a + b + d,
            ]
        ),
    ),
    Limited(
        48,
        lambda x: (x[0] - 1) ** 2 + (x[1] - x[2]) ** 2 + (x[3] - x[4]) ** 2,
        (3.0, 5.0, -3.0, 2.0, -2.0),
        0.0,
        zero=_rows(lambda a, b, c, d, e: [a + b + c + d + e - 5, c - 2 * (d + e) + 3]),
    ),
    Limited(
        51,
        lambda x: (
            (x[0] - x[1]) ** 2 + (x[1] + x[2] - 2) ** 2 + (x[3] - 1) ** 2
            + (x[4] - 1) ** 2
        ),
        (2.5, 0.5, 2.0, -1.0, 0.5),
        0.0,
        zero=_rows(lambda a, b, c, d, e: [a + 3 * b - 4, c + d - 2 * e, b - e]),
    ),
    Limited(
        63,
        lambda x: (
            1000 - x[0] ** 2 - 2 * x[1] ** 2 - x[2] ** 2 - x[0] * x[1] - x[0] * x[2]
        ),
        (2.0, 2.0, 2.0),
        961.7151721,
        zero=_rows(
            lambda a, b, c: [8 * a + 14 * b + 7 * c - 56, a**2 + b**2 + c**2 - 25]
        ),
        bounds=(0.0, None),
    ),
    Limited(
        65,
        lambda x: (
            (x[0] - x[1]) ** 2 + (x[0] + x[1] - 10) ** 2 / 9 + (x[2] - 5) ** 2
        ),
        (-5.0, 5.0, 0.0),
        0.9535288567,
        positive=_rows(lambda a, b, c: [48 - a**2 - b**2 - c**2]),
        bounds=([-4.5, -4.5, -5.0], [4.5, 4.5, 5.0]),
    ),
    Limited(
        71,
        lambda x: x[0] * x[3] * (x[0] + x[1] + x[2]) + x[2],
        (1.0, 5.0, 5.0, 1.0),
        17.0140173,
        zero=_rows(lambda a, b, c, d: [a**2 + b**2 + c**2 + d**2 - 40]),
        positive=_rows(lambda a, b, c, d: [a * b * c * d - 25]),
        bounds=(1.0, 5.0),
    ),
    Limited(
        76,
        lambda x: (
            x[0] ** 2 + x[1] ** 2 / 2 + x[2] ** 2 + x[3] ** 2 / 2 - x[0] * x[2]
            + x[2] * x[3] - x[0] - 3 * x[1] + x[2] - x[3]
        ),
        (0.5, 0.5, 0.5, 0.5),
        -4.681818182,
        positive=_rows(
            lambda a, b, c, d: [
                5 - a - 2 * b - c - d,
                4 - 3 * a - b - 2 * c + d,
                b + 4 * c - 1.5,
            ]
        ),
        bounds=(0.0, None),
    ),
    Limited(
        77,
        lambda x: (
            (x[0] - 1) ** 2 + (x[0] - x[1]) ** 2 + (x[2] - 1) ** 2
            + (x[3] - 1) ** 4 + (x[4] - 1) ** 6
        ),
        (2.0, 2.0, 2.0, 2.0, 2.0),
        0.24150513,
        zero=_rows(
            lambda a, b, c, d, e: [
                a**2 * d + jnp.sin(d - e) - 2 * _ROOT,
                b + c**4 * d**2 - 8 - _ROOT,
            ]
        ),
    ),
    Limited(
        78,
        lambda x: jnp.prod(x),
        (-2.0, 1.5, 2.0, -1.0, -1.0),
        -2.91970041,
        zero=_rows(
            lambda a, b, c, d, e: [
                a**2 + b**2 + c**2 + d**2 + e**2 - 10,
                b * c - 5 * d * e,
                a**3 + b**3 + 1,
            ]
        ),
    ),
    Limited(
        80,
        lambda x: jnp.exp(jnp.prod(x)),
        (-2.0, 2.0, 2.0, -1.0, -1.0),
        0.0539498478,
        zero=_rows(
            lambda a, b, c, d, e: [
                a**2 + b**2 + c**2 + d**2 + e**2 - 10,
                b * c - 5 * d * e,
                a**3 + b**3 + 1,
            ]
        ),
        bounds=([-2.3, -2.3, -3.2, -3.2, -3.2], [2.3, 2.3, 3.2, 3.2, 3.2]),
    ),
    Limited(
        100,
        lambda x: (
            (x[0] - 10) ** 2 + 5 * (x[1] - 12) ** 2 + x[2] ** 4 + 3 * (x[3] - 11) ** 2
            + 10 * x[4] ** 6 + 7 * x[5] ** 2 + x[6] ** 4 - 4 * x[5] * x[6]
            - 10 * x[5] - 8 * x[6]
        ),
        (1.0, 2.0, 0.0, 4.0, 0.0, 1.0, 1.0),
        680.6300573,
        positive=_rows(
            lambda a, b, c, d, e, f, g: [
                127 - 2 * a**2 - 3 * b**4 - c - 4 * d**2 - 5 * e,
                282 - 7 * a - 3 * b - 10 * c**2 - d + e,
                196 - 23 * a - b**2 - 6 * f**2 + 8 * g,
                -4 * a**2 - b**2 + 3 * a * b - 2 * c**2 - 5 * f + 11 * g,
            ]
        ),
    ),
    Limited(
        113,
        lambda x: (
            x[0] ** 2 + x[1] ** 2 + x[0] * x[1] - 14 * x[0] - 16 * x[1]
            + (x[2] - 10) ** 2 + 4 * (x[3] - 5) ** 2 + (x[4] - 3) ** 2
            + 2 * (x[5] - 1) ** 2 + 5 * x[6] ** 2 + 7 * (x[7] - 11) ** 2
            + 2 * (x[8] - 10) ** 2 + (x[9] - 7) ** 2 + 45
        ),
        (2.0, 3.0, 5.0, 5.0, 1.0, 2.0, 7.0, 3.0, 6.0, 10.0),
        24.3062091,
        positive=_rows(
            lambda a, b, c, d, e, f, g, h, i, j: [
                105 - 4 * a - 5 * b + 3 * g - 9 * h,
                -10 * a + 8 * b + 17 * g - 2 * h,
                8 * a - 2 * b - 5 * i + 2 * j + 12,
                -3 * (a - 2) ** 2 - 4 * (b - 3) ** 2 - 2 * c**2 + 7 * d + 120,
                -5 * a**2 - 8 * b - (c - 6) ** 2 + 2 * d + 40,
                -((a - 8) ** 2) / 2 - 2 * (b - 4) ** 2 - 3 * e**2 + f + 30,
                -(a**2) - 2 * (b - 2) ** 2 + 2 * a * b - 14 * e + 6 * f,
                3 * a - 6 * b - 12 * (i - 8) ** 2 + 7 * j,
            ]
        ),
    ),
]  # fmt: skip
