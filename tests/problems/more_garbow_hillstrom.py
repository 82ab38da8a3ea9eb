"""The problems of few variables of Moré, Garbow and Hillstrom, numbers 1 to 20.

Moré, Garbow and Hillstrom, 1981, Testing unconstrained optimization software,
DOI 10.1145/355934.355936: each is a sum of squares of residuals f_i; starts, data and
minima are those of section 3.  The six digits that it prints of a minimum are too few
for a tolerance of 1e-6; the others are of runs that agree with those six.  A function
here returns the residuals, scalars and arrays.
"""

import functools as ft
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from .problem import Problem, like, squares


def rosenbrock(x):
    return (10 * (x[1] - x[0] ** 2), 1 - x[0])


def freudenstein_roth(x):
    return (
        -13 + x[0] + ((5 - x[1]) * x[1] - 2) * x[1],
        -29 + x[0] + ((x[1] + 1) * x[1] - 14) * x[1],
    )


def powell_badly_scaled(x):
    return (1e4 * x[0] * x[1] - 1, jnp.exp(-x[0]) + jnp.exp(-x[1]) - 1.0001)


def brown_badly_scaled(x):
    return (x[0] - 1e6, x[1] - 2e-6, x[0] * x[1] - 2)


def beale(x):
    y, i = like(x, [1.5, 2.25, 2.625]), like(x, [1, 2, 3])
    return (y - x[0] * (1 - x[1] ** i),)


def jennrich_sampson(x):
    i = like(x, np.arange(1, 11))
    return (2 + 2 * i - (jnp.exp(i * x[0]) + jnp.exp(i * x[1])),)


def helical_valley(x):
    # The paper's arctan(x2 / x1), with a half turn added where x1 < 0.
    half = like(x, np.pi)
    angle = jnp.arctan(x[1] / x[0]) + jnp.where(x[0] < 0, half, jnp.zeros_like(half))
    theta = angle / (2 * np.pi)
    radius = jnp.sqrt(x[0] ** 2 + x[1] ** 2)
    return (10 * (x[2] - 10 * theta), 10 * (radius - 1), x[2])


BARD = [0.14, 0.18, 0.22, 0.25, 0.29, 0.32, 0.35, 0.39, 0.37, 0.58, 0.73, 0.96]
BARD += [1.34, 2.10, 4.39]


def bard(x):
    y, u = like(x, BARD), like(x, np.arange(1, 16))
    v = 16 - u
    return (y - (x[0] + u / (v * x[1] + jnp.minimum(u, v) * x[2])),)


HALF_BELL = [0.0009, 0.0044, 0.0175, 0.0540, 0.1295, 0.2420, 0.3521]


def gaussian(x):
    y = like(x, [*HALF_BELL, 0.3989, *HALF_BELL[::-1]])
    t = (8 - like(x, np.arange(1, 16))) / 2
    return (x[0] * jnp.exp(-x[1] * (t - x[2]) ** 2 / 2) - y,)


MEYER = [34780, 28610, 23650, 19630, 16370, 13720, 11540, 9744, 8261, 7030, 6005]
MEYER += [5147, 4427, 3820, 3307, 2872]


def meyer(x):
    y, t = like(x, MEYER), 45 + 5 * like(x, np.arange(1, 17))
    return (x[0] * jnp.exp(x[1] / (t + x[2])) - y,)


def gulf(x):
    """With y_i - x2 where the paper misprints a product; its minimum needs that."""
    t = np.arange(1, 100) / 100
    y = 25 + (-50 * np.log(t)) ** (2 / 3)
    distance = jnp.abs(like(x, y) - x[1])
    return (jnp.exp(-(distance ** x[2]) / x[0]) - like(x, t),)


def box(x):
    t = like(x, 0.1 * np.arange(1, 11))
    last = jnp.exp(-t) - jnp.exp(-10 * t)
    return (jnp.exp(-t * x[0]) - jnp.exp(-t * x[1]) - x[2] * last,)


def powell_singular(x):
    a, b, c, d = x
    root5, root10 = 5**0.5, 10**0.5
    f3, f4 = (b - 2 * c) ** 2, root10 * (a - d) ** 2
    return (a + 10 * b, root5 * (c - d), f3, f4)


def wood(x):
    a, b, c, d = x
    first = 10 * (b - a**2), 1 - a, 90**0.5 * (d - c**2), 1 - c
    return *first, 10**0.5 * (b + d - 2), (b - d) / 10**0.5


KOWALIK = [0.1957, 0.1947, 0.1735, 0.1600, 0.0844, 0.0627, 0.0456, 0.0342, 0.0323]
KOWALIK += [0.0235, 0.0246]
KOWALIK_U = [4, 2, 1, 0.5, 0.25, 0.167, 0.125, 0.1, 0.0833, 0.0714, 0.0625]


def kowalik_osborne(x):
    y, u = like(x, KOWALIK), like(x, KOWALIK_U)
    return (y - x[0] * (u**2 + u * x[1]) / (u**2 + u * x[2] + x[3]),)


def brown_dennis(x):
    t = like(x, np.arange(1, 21) / 5)
    line, wave = x[0] + t * x[1] - jnp.exp(t), x[2] + x[3] * jnp.sin(t) - jnp.cos(t)
    return (line**2 + wave**2,)


OSBORNE_1 = [844, 908, 932, 936, 925, 908, 881, 850, 818, 784, 751, 718, 685, 658, 628]
OSBORNE_1 += [603, 580, 558, 538, 522, 506, 490, 478, 467, 457, 448, 438, 431, 424]
OSBORNE_1 += [420, 414, 411, 406]


def osborne_1(x):
    y, t = like(x, OSBORNE_1) / 1000, like(x, 10 * np.arange(33))
    return (y - (x[0] + x[1] * jnp.exp(-t * x[3]) + x[2] * jnp.exp(-t * x[4])),)


def biggs_exp6(x):
    t = like(x, 0.1 * np.arange(1, 14))
    y = jnp.exp(-t) - 5 * jnp.exp(-10 * t) + 3 * jnp.exp(-4 * t)
    model = x[2] * jnp.exp(-t * x[0]) - x[3] * jnp.exp(-t * x[1])
    return (model + x[5] * jnp.exp(-t * x[4]) - y,)


OSBORNE_2 = [1366, 1191, 1112, 1013, 991, 885, 831, 847, 786, 725, 746, 679, 608, 655]
OSBORNE_2 += [616, 606, 602, 626, 651, 724, 649, 649, 694, 644, 624, 661, 612, 558]
OSBORNE_2 += [533, 495, 500, 423, 395, 375, 372, 391, 396, 405, 428, 429, 523, 562]
OSBORNE_2 += [607, 653, 672, 708, 633, 668, 645, 632, 591, 559, 597, 625, 739, 710]
OSBORNE_2 += [729, 720, 636, 581, 428, 292, 162, 98, 54]


def osborne_2(x):
    y, t = like(x, OSBORNE_2) / 1000, like(x, np.arange(65) / 10)
    bells = x[1:4, None] * jnp.exp(-((t[None] - x[8:, None]) ** 2) * x[5:8, None])
    return (y - x[0] * jnp.exp(-t * x[4]) - jnp.sum(bells, 0),)


def watson(x):
    t = np.arange(1, 30)[:, None] / 29
    j = np.arange(x.size)[None]
    powers = t**j
    slopes = np.where(j > 0, j * t ** np.maximum(j - 1, 0), 0)
    curve = jnp.matmul(like(x, powers), x)
    rest = x[0], x[1] - x[0] ** 2 - 1
    return (jnp.matmul(like(x, slopes), x) - curve**2 - 1, *rest)


# Number, function, start, minimum.
TABLE = [
    (1, rosenbrock, [-1.2, 1], 0),
    (2, freudenstein_roth, [0.5, -2], 48.9842536792),
    (3, powell_badly_scaled, [0, 1], 0),
    (4, brown_badly_scaled, [1, 1], 0),
    (5, beale, [1, 1], 0),
    (6, jennrich_sampson, [0.3, 0.4], 124.362182355615),
    (7, helical_valley, [-1, 0, 0], 0),
    (8, bard, [1, 1, 1], 8.21487730657898e-3),
    (9, gaussian, [0.4, 1, 0], 1.12793276961912e-8),
    (10, meyer, [0.02, 4000, 250], 87.9458551708),
    (11, gulf, [5, 2.5, 0.15], 0),
    (12, box, [0, 10, 20], 0),
    (13, powell_singular, [3, -1, 0, 1], 0),
    (14, wood, [-3, -1, -3, -1], 0),
    (15, kowalik_osborne, [0.25, 0.39, 0.415, 0.39], 3.07505603849e-4),
    (16, brown_dennis, [25, 5, -5, -1], 85822.2016263563),
    (17, osborne_1, [0.5, 1.5, -1, 0.01, 0.02], 5.46489469748e-5),
    (18, biggs_exp6, [1, 2, 1, 1, 1, 1], 5.6556499255e-3),
    (19, osborne_2, [1.3, 0.65, 0.65, 0.7, 0.6, 3, 5, 7, 2, 4.5, 5.5], 0.0401377362935),
    (20, watson, [0] * 6, 2.28767005355e-3),
    (20, watson, [0] * 9, 1.39976013830e-6),
    (20, watson, [0] * 12, 4.72238107e-10),
]


@ft.cache
def total(fun: Callable) -> Callable:
    """The sum of squares of the residuals that a function returns."""
    return lambda x: squares(*fun(x))


def collect() -> list[Problem]:
    found = []
    for number, fun, start, minimum in TABLE:
        name = fun.__name__.replace("_", " ")
        if fun is watson:
            name += f" {len(start)}"
        source = f"Moré, Garbow and Hillstrom 1981, problem {number}"
        found.append(Problem(name, total(fun), np.array(start, float), minimum, source))
    return found
